# SPDX-License-Identifier: Apache-2.0
"""Where docker is told: its daemon.json, and what in a unit stands against that.

A key that is both in daemon.json and a flag makes dockerd refuse to start, and a reload fail.
Source: dockerd(8), "--config-file" and "CONFIGURATION RELOAD BEHAVIOR".
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.engines import docker, unit
from gpushare.engines.errors import EngineError
from gpushare.engines.place import NAME, File, Place, beneath

if TYPE_CHECKING:
    from gpushare.engines.registration import Change

DAEMON_JSON: Final = Path("/etc/docker/daemon.json")
RELOAD: Final = "systemctl reload docker"
RESTART: Final = "systemctl restart docker"
PROGRAMS: Final = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd")
SNAP: Final = Path("/var/snap/docker")
DESKTOP: Final = (Path("/opt/docker-desktop"), Path("/mnt/wsl/docker-desktop"))


def place(root: Path = Path("/"), file: Path | None = None) -> Place:
    """Return where docker is told; EngineError where it cannot be, with the reason."""
    start = unit.start_of("docker", root)
    if file is None:
        _refuse_sealed(root)
        named = start.values("--config-file") if start else []
        file = beneath(root, Path(named[-1])) if named else beneath(root, DAEMON_JSON)
    elif beneath(root, SNAP) in file.parents:
        raise EngineError(_SNAP)
    syntax = docker.DaemonJson(
        _conflict(start, "--add-runtime"), _conflict(start, "--default-runtime")
    )
    return Place(
        (File(file, syntax),),
        RELOAD,
        reloads=True,
        restart=RESTART,
        default=syntax.default_program(file),
    )


def reload_forgets(place: Place, changes: list[Change]) -> bool:
    """Return whether what `changes` take out is gone after a reload, where `place` has one."""
    return not place.restart or all(
        docker.forgotten_by_reload(change.before or "", change.after or "")
        for change in changes
        if change.needed and change.path == place.path
    )


_SNAP: Final = (
    "docker is the snap here: it is confined to its own files, starts no runtime but those it "
    "brings, and its daemon.json is replaced by an update; `snap remove docker` and install "
    "docker.io or docker-ce"
)
_DESKTOP: Final = (
    "docker is Docker Desktop here: its dockerd runs in a virtual machine, which has neither this "
    "machine's GPU nor its files; install docker.io or docker-ce beside it"
)


def _refuse_sealed(root: Path) -> None:
    """Raise where the only docker is one that can run nothing of this machine's."""
    if _installed(root):
        return
    if beneath(root, SNAP).is_dir():
        raise EngineError(_SNAP)
    if any(beneath(root, path).is_dir() for path in DESKTOP):
        raise EngineError(_DESKTOP)


def _installed(root: Path) -> bool:
    if any(beneath(root, Path(program)).exists() for program in PROGRAMS):
        return True
    found = shutil.which("dockerd") if root == Path("/") else None
    return found is not None and not found.startswith("/snap/")


def _conflict(start: unit.Start | None, flag: str) -> str:
    """Return why daemon.json must not say what `flag` says already, empty where it is not given."""
    values = start.values(flag) if start else []
    if start is None or not values or any(value.startswith(f"{NAME}=") for value in values):
        return ""
    return (
        f"dockerd is started with {flag} {values[0]} ({start.file}) and takes either that or a "
        "daemon.json, never both; move it there"
    )
