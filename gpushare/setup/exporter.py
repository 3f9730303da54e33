# SPDX-License-Identifier: Apache-2.0
"""The steps of `gpushare setup --metrics`: gpushare-exporter, under systemd."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gpushare
from gpushare.engines.place import beneath
from gpushare.exporter import NO_LIBRARY
from gpushare.setup.plan import SYSTEMD, UNITS, SetupError, Step, systemctl, wanted_at_boot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.setup.made import Made

NAME: Final = "gpushare-exporter.service"
UNIT: Final = UNITS / NAME
HOMES: Final = ("/home", "/root", "/run/user")  # ProtectHome= of systemd.exec(5)


def steps(made: Made) -> Iterator[Step]:
    """Yield what installs and starts the exporter; SetupError where it could not run."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise SetupError(f"--metrics: {NO_LIBRARY}")
    _refuse_home(made.root)
    text, place = unit_text(), beneath(made.root, UNIT)
    if place.is_file() and place.read_text(encoding="utf-8") == text:
        yield Step(f"unit {UNIT}")
    else:
        yield Step(f"write {UNIT}", lambda: made.write(UNIT, text))
    if made.root != Path("/"):
        yield wanted_at_boot(made, NAME, text)
    elif SYSTEMD.is_dir():
        yield Step("start gpushare-exporter, now and at boot", _start)
    else:
        yield Step(f"start the exporter: {_program()} (no systemd here)", yours=True)


def undo(made: Made) -> Iterator[Step]:
    """Yield what stops the exporter; its unit goes with the rest of what was made."""
    if str(UNIT) not in made.files or made.root != Path("/"):
        return
    if SYSTEMD.is_dir():
        yield Step("stop gpushare-exporter", lambda: systemctl("disable", "--now", NAME))
    else:
        yield Step("stop the gpushare-exporter that you started (no systemd here)", yours=True)


def unit_text() -> str:
    """Return the unit with this installation's gpushare-exporter in it."""
    folders = [Path(folder) for folder in gpushare.__path__]
    folders += [folder.parent / "packaging/systemd" for folder in folders]
    for folder in folders:
        if (folder / NAME).is_file():
            text = (folder / NAME).read_text(encoding="utf-8")
            started = re.compile(r"(?m)^((?:#   )?ExecStart=)/\S*/gpushare-exporter\b")
            return started.sub(rf"\g<1>{_program()}", text)
    raise SetupError(f"{NAME} is not in {folders[0]}; install the package again")


def _refuse_home(root: Path) -> None:
    """Raise SetupError where the user that systemd makes up could not read the program."""
    prefix = Path(sys.prefix)
    if root == Path("/") and any(prefix.is_relative_to(home) for home in HOMES):
        raise SetupError(
            f"--metrics: gpushare is installed in {prefix}, and the exporter is a user who sees no "
            "home; install it elsewhere, e.g. python3 -m venv /opt/gpushare"
        )


def _program() -> Path:
    return Path(sys.prefix) / "bin/gpushare-exporter"


def _start() -> None:
    systemctl("daemon-reload")
    systemctl("enable", NAME)
    systemctl("restart", NAME)
