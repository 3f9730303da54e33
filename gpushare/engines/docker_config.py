# SPDX-License-Identifier: Apache-2.0
"""The runtime in Docker's daemon.json, and flags of dockerd's unit that conflict with it.

If a key is both in daemon.json and a flag, dockerd does not start and a reload fails.
Source: dockerd(8), "--config-file" and "CONFIGURATION RELOAD BEHAVIOR"; dockerd reads "runtimes"
and "default-runtime" again on SIGHUP.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gpushare.engines import json_text, systemd_unit
from gpushare.engines.config_files import (
    NAME,
    BadConfiguration,
    ConfigFile,
    ConfigLocation,
    EngineError,
    Syntax,
    UndoneBy,
    read_text,
    under_root,
)

if TYPE_CHECKING:
    from gpushare.engines.config_files import FileChange

DAEMON_JSON: Final = Path("/etc/docker/daemon.json")
RELOAD: Final = "systemctl reload docker"
RESTART: Final = "systemctl restart docker"
PROGRAMS: Final = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd")
SNAP: Final = Path("/var/snap/docker")
DESKTOP: Final = (Path("/opt/docker-desktop"), Path("/mnt/wsl/docker-desktop"))
_SNAP: Final = (
    "docker is installed as a snap: it is confined to its own files, runs only its own runtimes, "
    "and an update replaces its daemon.json. Run `snap remove docker`, and install docker.io or "
    "docker-ce"
)
_DESKTOP: Final = (
    "docker is Docker Desktop: its dockerd runs in a virtual machine, which has neither this "
    "machine's GPU nor its files. Install docker.io or docker-ce next to it"
)
_RUNTIMES: Final = "runtimes"
_DEFAULT: Final = "default-runtime"


def locate(root: Path = Path("/"), file: Path | None = None) -> ConfigLocation:
    """Return Docker's configuration file; EngineError, with the reason, if it cannot be edited."""
    start = systemd_unit.unit_start("docker", root)
    if file is None:
        _refuse_sealed(root)
        named = start.values("--config-file") if start else []
        file = under_root(root, Path(named[-1])) if named else under_root(root, DAEMON_JSON)
    elif under_root(root, SNAP) in file.parents:
        raise EngineError(_SNAP)
    syntax = DaemonJson(_conflict(start, "--add-runtime"), _conflict(start, "--default-runtime"))
    return ConfigLocation(
        (ConfigFile(file, syntax),),
        RELOAD,
        reloads=True,
        restart=RESTART,
        default=syntax.default_program(file),
    )


def reload_suffices(location: ConfigLocation, changes: list[FileChange]) -> bool:
    """Return whether what `changes` take out is gone after a reload, where `locate` has one."""
    return not location.restart or all(
        is_removed_by_reload(change.before or "", change.after or "")
        for change in changes
        if change.needed and change.path == location.path
    )


def _refuse_sealed(root: Path) -> None:
    """Raise EngineError if the only Docker cannot run programs of this machine."""
    if _installed(root):
        return
    if under_root(root, SNAP).is_dir():
        raise EngineError(_SNAP)
    if any(under_root(root, path).is_dir() for path in DESKTOP):
        raise EngineError(_DESKTOP)


def _installed(root: Path) -> bool:
    if any(under_root(root, Path(program)).exists() for program in PROGRAMS):
        return True
    dockerd = shutil.which("dockerd") if root == Path("/") else None
    return dockerd is not None and not dockerd.startswith("/snap/")


def _conflict(start: systemd_unit.UnitStart | None, flag: str) -> str:
    """Return why daemon.json must not set the same key as `flag`, empty if the flag is not used."""
    values = start.values(flag) if start else []
    if start is None or not values or any(value.startswith(f"{NAME}=") for value in values):
        return ""
    return (
        f"dockerd is started with {flag} {values[0]} ({start.file}), and does not accept both this "
        "flag and the key in daemon.json. Move the flag's value to daemon.json"
    )


@dataclass(frozen=True)
class DaemonJson(Syntax):
    """The file. The fields are the reasons why a key is already set by a flag, empty if not."""

    runtimes_taken: str = ""
    default_taken: str = ""

    undone_by: ClassVar[UndoneBy] = "json"

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the runtime, as Docker's default if requested."""
        content = _read(text)
        taken = self.runtimes_taken or (self.default_taken if default else "")
        if taken:
            raise BadConfiguration(taken)
        runtimes = {**content.get(_RUNTIMES, {}), NAME: {"path": str(launcher)}}
        wanted = {**content, _RUNTIMES: runtimes, **({_DEFAULT: NAME} if default else {})}
        return text if wanted == content else json_text.dump(wanted, text)

    def unregister(self, text: str, original: str) -> str:
        """Return `text` without the runtime; the default as in `original`."""
        content = _read(text)
        if content.get(_DEFAULT) == NAME:
            before = _read(original).get(_DEFAULT)
            if before in {None, NAME}:
                del content[_DEFAULT]
            else:
                content[_DEFAULT] = before
        if content.get(_RUNTIMES, {}).pop(NAME, None) is not None and not content[_RUNTIMES]:
            del content[_RUNTIMES]
        return json_text.dump(content, text)

    def registered(self, text: str) -> Path | None:
        """Return the launcher that `text` names, None when the runtime is not in it."""
        entry = _read(text).get(_RUNTIMES, {}).get(NAME)
        return Path(str(entry.get("path", ""))) if isinstance(entry, dict) else None

    def is_default(self, text: str) -> bool:
        """Return whether the runtime is the default."""
        return _read(text).get(_DEFAULT) == NAME

    def default_program(self, file: Path) -> str | None:
        """Return the program of the default runtime in `file`; None for docker's own, or ours."""
        try:
            content = _read(read_text(file))
        except BadConfiguration:
            return None  # `register` reports the error
        chosen = content.get(_DEFAULT)
        entry = content.get(_RUNTIMES, {}).get(chosen) if chosen != NAME else None
        if isinstance(entry, dict) and entry.get("path"):
            return str(entry["path"])
        return str(chosen) if chosen not in {None, NAME, "runc"} else None


def is_removed_by_reload(before: str, after: str) -> bool:
    """Return whether a reload drops the runtime that is in `before` and not in `after`.

    A key that is missing from the file changes nothing: dockerd keeps its runtimes and its default.
    Source: moby daemon/reload_unix.go; tested with 20.10 and 26.1.
    """
    left = _read(after)
    was_default = _read(before).get(_DEFAULT) == NAME
    return bool(left.get(_RUNTIMES)) and (not was_default or _DEFAULT in left)


def _read(text: str) -> dict[str, Any]:
    content = json_text.parse(text) if text.strip() else {}
    if not isinstance(content.get(_RUNTIMES, {}), dict):
        raise BadConfiguration(f'"{_RUNTIMES}" is not an object')
    return content
