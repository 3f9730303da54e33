# SPDX-License-Identifier: Apache-2.0
"""The steps of `gpushare setup --metrics` and `--kubernetes`: programs beside gpushared."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gpushare
from gpushare import exporter, kubernetes
from gpushare.engines.config_files import under_root
from gpushare.kubernetes.api.credentials import DEFAULT_KUBECONFIG
from gpushare.setup.plan import SYSTEMD, UNITS, SetupError, SetupStep, systemctl, wanted_at_boot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.setup import InstallRecord

_REMOVE_SECONDS: Final = 120.0
HOMES: Final = ("/home", "/root", "/run/user")  # ProtectHome= of systemd.exec(5)


@dataclass(frozen=True)
class OptionalUnit:
    """A program with a systemd unit of its name, which an option of setup installs."""

    program: str
    option: str
    library: str  # the module that it needs
    missing: str  # the error without it
    has_own_user: bool  # systemd makes a user for it, without access to home folders
    credentials: Path | None = None  # with them, it has left something elsewhere: `--remove`

    @property
    def name(self) -> str:
        """The name of the unit."""
        return f"{self.program}.service"

    @property
    def path(self) -> Path:
        """Where setup writes the unit."""
        return UNITS / self.name

    def plan(self, made: InstallRecord) -> Iterator[SetupStep]:
        """Yield the steps that install and start it; SetupError if it could not run."""
        if importlib.util.find_spec(self.library) is None:
            raise SetupError(f"{self.option}: {self.missing}")
        self._refuse_home(made.root)
        text, place = self.text(), under_root(made.root, self.path)
        if place.is_file() and place.read_text(encoding="utf-8") == text:
            yield SetupStep(f"unit {self.path}")
        else:
            yield SetupStep(f"write {self.path}", lambda: made.write(self.path, text))
        if made.root != Path("/"):
            yield wanted_at_boot(made, self.name, text)
        elif SYSTEMD.is_dir():
            yield SetupStep(f"start {self.program}, now and at boot", self._start)
        else:
            start = f"start {self.program}: {self._executable()} (systemd is not running)"
            yield SetupStep(start, yours=True)

    def plan_undo(self, made: InstallRecord) -> Iterator[SetupStep]:
        """Yield the steps that stop it; its unit is removed with the other recorded files."""
        if str(self.path) not in made.files or made.root != Path("/"):
            return
        if SYSTEMD.is_dir():
            stop = f"stop {self.program}"
            yield SetupStep(stop, lambda: systemctl("disable", "--now", self.name))
        else:
            stop = f"stop the {self.program} that you started (systemd is not running)"
            yield SetupStep(stop, yours=True)
        if self.credentials is not None and self.credentials.exists():
            remove = "remove the node's labels and ResourceSlices from the cluster"
            yield SetupStep(f"{remove} ({self.program} --remove)", self._remove)

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

    def _remove(self) -> None:
        """Remove what it has left elsewhere; a cluster that does not answer stops no undo."""
        argv = [str(self._executable()), "--remove"]
        if subprocess.run(argv, check=False, timeout=_REMOVE_SECONDS).returncode:
            sys.stderr.write(f"They stay. Run {self._executable()} --remove again.\n")

    def _start(self) -> None:
        systemctl("daemon-reload")
        systemctl("enable", self.name)
        systemctl("restart", self.name)


EXPORTER: Final = OptionalUnit(
    "gpushare-exporter",
    "--metrics",
    "prometheus_client",
    exporter.NO_LIBRARY,
    has_own_user=True,
)
NODE: Final = OptionalUnit(
    "gpushare-node",
    "--kubernetes",
    "grpc",
    kubernetes.NO_LIBRARY,
    has_own_user=False,
    credentials=DEFAULT_KUBECONFIG,
)
