# SPDX-License-Identifier: Apache-2.0
"""The engines: where each keeps its configuration, and how it is told to read it again."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gpushare.engines import containerd, docker
from gpushare.engines.errors import EngineError

_ANSWER_SECONDS: Final = 5.0


class Syntax(Protocol):
    """How an engine's configuration is edited; text in, text out."""

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the runtime in it."""

    def unregister(self, text: str, original: str) -> str:
        """Return `text` without it; the default as in `original`."""

    def registered(self, text: str) -> Path | None:
        """Return the launcher that `text` names."""

    def is_default(self, text: str) -> bool:
        """Return whether the runtime is the default."""

    def remarks(self, text: str) -> list[str]:
        """Return what the user should know."""


@dataclass(frozen=True)
class Engine:
    """One engine; `apply` is the command that makes it read its configuration again."""

    name: str
    program: str
    configurations: tuple[Path, ...]  # the first that is there, else the first
    apply: str
    reloads: bool  # `apply` disturbs nothing that runs
    syntax: Syntax
    ask: tuple[str, ...] = ()  # prints the names of the runtimes that the running engine knows

    def known(self) -> list[str]:
        """Return the runtimes that the running engine knows; none where it does not answer."""
        if not self.ask:
            return []
        try:
            said = subprocess.run(
                self.ask, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return []
        return said.stdout.split() if said.returncode == 0 else []

    def present(self, root: Path = Path("/")) -> bool:
        """Return whether the engine is on this machine (or beneath `root`)."""
        if root == Path("/") and shutil.which(self.program):
            return True
        return any(beneath(root, path).parent.is_dir() for path in self.configurations)

    def configuration(self, root: Path = Path("/")) -> Path:
        """Return the file to edit beneath `root`."""
        places = [beneath(root, path) for path in self.configurations]
        return next((path for path in places if path.exists()), places[0])


ENGINES: Final = {
    "docker": Engine(
        name="docker",
        program="dockerd",
        configurations=(
            Path("/etc/docker/daemon.json"),
            Path("/var/snap/docker/current/config/daemon.json"),
        ),
        apply="systemctl reload docker",
        reloads=True,
        syntax=docker,
        ask=("docker", "info", "--format", "{{range $name, $_ := .Runtimes}}{{$name}} {{end}}"),
    ),
    "containerd": Engine(
        name="containerd",
        program="containerd",
        configurations=(Path("/etc/containerd/config.toml"),),
        apply="systemctl restart containerd",
        reloads=False,
        syntax=containerd,
    ),
}

# These write containerd's configuration themselves at each start, from a template of the user's.
GENERATED: Final = {
    Path("/var/lib/rancher/k3s/agent/etc/containerd"): "k3s",
    Path("/var/lib/rancher/rke2/agent/etc/containerd"): "rke2",
    Path("/etc/k0s/containerd.d"): "k0s",
}


def beneath(root: Path, path: Path) -> Path:
    """Return the absolute `path` as it is called beneath `root`."""
    return root / path.relative_to("/")


def find(name: str) -> Engine:
    """Return the engine of that name; EngineError lists those there are."""
    if name not in ENGINES:
        raise EngineError(f'"{name}" is no engine known here; there are {", ".join(ENGINES)}')
    return ENGINES[name]
