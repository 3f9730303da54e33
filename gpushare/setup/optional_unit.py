# SPDX-License-Identifier: Apache-2.0
"""The steps of `gpushare setup --metrics` and `--kubernetes`: programs beside gpushared."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gpushare
from gpushare import kubernetes
from gpushare.engines.config_files import under_root
from gpushare.errors import UserError
from gpushare.host import init_system
from gpushare.kubernetes.api.credentials import DEFAULT_KUBECONFIG
from gpushare.setup.plan import UNITS, systemctl, wanted_at_boot
from gpushare.setup.step import SetupError, SetupStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpushare.setup import InstallRecord

HOMES: Final = ("/home", "/root", "/run/user")  # ProtectHome= of systemd.exec(5)


@dataclass(frozen=True)
class OptionalUnit:
    """A program with a systemd unit of its name, which an option of setup installs."""

    program: str
    option: str
    has_own_user: bool  # systemd makes a user for it, without access to home folders
    check_libraries: Callable[[], None] = lambda: None  # UserError if one is missing
    credentials: Path | None = None  # with them, gpushare-undo runs the program with --remove

    @property
    def name(self) -> str:
        """The name of the unit."""
        return f"{self.program}.service"

    @property
    def path(self) -> Path:
        """Where setup writes the unit."""
        return UNITS / self.name

    def is_in(self, made: InstallRecord) -> bool:
        """Whether setup has installed it."""
        return str(self.path) in made.files

    def plan(self, made: InstallRecord) -> Iterator[SetupStep]:
        """Yield the steps that install and start it; SetupError if it could not run."""
        try:
            self.check_libraries()
        except UserError as error:
            raise SetupError(f"{self.option}: {error}") from error
        self._refuse_home(made.root)
        text, place = self.text(), under_root(made.root, self.path)
        if place.is_file() and place.read_text(encoding="utf-8") == text:
            yield SetupStep(f"unit {self.path}")
        else:
            yield SetupStep(f"write {self.path}", lambda: self._write(made, text))
        if made.root != Path("/"):
            yield wanted_at_boot(made, self.name, text)
        elif init_system.has_systemd():
            yield SetupStep(f"start {self.program}, now and at boot", self._start)
        else:
            start = f"start {self.program}: {self._executable()} (systemd is not running)"
            yield SetupStep(start, yours=True)

    def text(self) -> str:
        """Return the unit with the path of this installation's program."""
        folders = [Path(folder) for folder in gpushare.__path__]
        folders += [folder.parent / "packaging/systemd" for folder in folders]
        for folder in folders:
            if (folder / self.name).is_file():
                text = (folder / self.name).read_text(encoding="utf-8")
                started = re.compile(rf"(?m)^((?:#   )?ExecStart=)/\S*/{self.program}\b")
                return started.sub(rf"\g<1>{self._executable()}", text)
        raise SetupError(f"{self.name} is not in {folders[0]}. Reinstall the package")

    def _refuse_home(self, root: Path) -> None:
        """Raise SetupError if the unit's dynamic user could not read the program."""
        prefix = Path(sys.prefix)
        is_in_home = root == Path("/") and any(prefix.is_relative_to(home) for home in HOMES)
        if self.has_own_user and is_in_home:
            raise SetupError(
                f"{self.option}: gpushare is installed in {prefix}, and the user of {self.program} "
                "has no access to home folders. Install gpushare elsewhere, for example "
                "python3 -m venv /opt/gpushare"
            )

    def _executable(self) -> Path:
        return Path(sys.prefix) / "bin" / self.program

    def _write(self, made: InstallRecord, text: str) -> None:
        if self.credentials is not None:
            made.node = str(self._executable()), str(self.credentials)
        made.write(self.path, text)

    def _start(self) -> None:
        systemctl("daemon-reload")
        systemctl("enable", self.name)
        systemctl("restart", self.name)


EXPORTER: Final = OptionalUnit("gpushare-exporter", "--metrics", has_own_user=True)
NODE: Final = OptionalUnit(
    "gpushare-node",
    "--kubernetes",
    has_own_user=False,
    check_libraries=kubernetes.check_libraries,
    credentials=DEFAULT_KUBECONFIG,
)
