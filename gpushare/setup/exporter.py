# SPDX-License-Identifier: Apache-2.0
"""The steps of `gpushare setup --metrics`: gpushare-exporter, under systemd."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gpushare
from gpushare.engines.config_files import under_root
from gpushare.exporter import NO_LIBRARY
from gpushare.setup.plan import SYSTEMD, UNITS, SetupError, SetupStep, systemctl, wanted_at_boot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.setup import InstallRecord

NAME: Final = "gpushare-exporter.service"
UNIT: Final = UNITS / NAME
HOMES: Final = ("/home", "/root", "/run/user")  # ProtectHome= of systemd.exec(5)


def plan_exporter(made: InstallRecord) -> Iterator[SetupStep]:
    """Yield the steps that install and start the exporter; SetupError if it could not run."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise SetupError(f"--metrics: {NO_LIBRARY}")
    _refuse_home(made.root)
    text, place = unit_text(), under_root(made.root, UNIT)
    if place.is_file() and place.read_text(encoding="utf-8") == text:
        yield SetupStep(f"unit {UNIT}")
    else:
        yield SetupStep(f"write {UNIT}", lambda: made.write(UNIT, text))
    if made.root != Path("/"):
        yield wanted_at_boot(made, NAME, text)
    elif SYSTEMD.is_dir():
        yield SetupStep("start gpushare-exporter, now and at boot", _start)
    else:
        yield SetupStep(f"start the exporter: {_program()} (systemd is not running)", yours=True)


def plan_exporter_undo(made: InstallRecord) -> Iterator[SetupStep]:
    """Yield the steps that stop the exporter; its unit is removed with the other recorded files."""
    if str(UNIT) not in made.files or made.root != Path("/"):
        return
    if SYSTEMD.is_dir():
        yield SetupStep("stop gpushare-exporter", lambda: systemctl("disable", "--now", NAME))
    else:
        yield SetupStep(
            "stop the gpushare-exporter that you started (systemd is not running)", yours=True
        )


def unit_text() -> str:
    """Return the unit with the path of this installation's gpushare-exporter."""
    folders = [Path(folder) for folder in gpushare.__path__]
    folders += [folder.parent / "packaging/systemd" for folder in folders]
    for folder in folders:
        if (folder / NAME).is_file():
            text = (folder / NAME).read_text(encoding="utf-8")
            started = re.compile(r"(?m)^((?:#   )?ExecStart=)/\S*/gpushare-exporter\b")
            return started.sub(rf"\g<1>{_program()}", text)
    raise SetupError(f"{NAME} is not in {folders[0]}. Reinstall the package")


def _refuse_home(root: Path) -> None:
    """Raise SetupError if the unit's dynamic user could not read the program."""
    prefix = Path(sys.prefix)
    if root == Path("/") and any(prefix.is_relative_to(home) for home in HOMES):
        raise SetupError(
            f"--metrics: gpushare is installed in {prefix}, and the exporter's user has no access "
            "to home folders. Install gpushare elsewhere, for example python3 -m venv /opt/gpushare"
        )


def _program() -> Path:
    return Path(sys.prefix) / "bin/gpushare-exporter"


def _start() -> None:
    systemctl("daemon-reload")
    systemctl("enable", NAME)
    systemctl("restart", NAME)
