# SPDX-License-Identifier: Apache-2.0
"""The systemd unit of an engine: its command line, and a drop-in that orders it.

The drop-in starts the engine after gpushared's socket and is removed with the runtime. Containers
that restart at boot then find the socket, and the launcher waits for the daemon behind it. The
engine is not ordered after the daemon itself: if the daemon cannot start, or waits for a driver,
containers that request no GPU must still start.
Source: systemd.unit(5), "drop-in" (`After=` a missing unit has no effect); systemd.service(5).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.engines.config_files import ConfigFile, OwnFile, read_text, under_root

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDERS: Final = tuple(  # of files with the same name, the first takes precedence
    Path(folder) / "systemd/system"
    for folder in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
)
_PREFIXES: Final = "-@:+!"  # of a command in ExecStart
_VARIABLE: Final = re.compile(r"\$\{?(\w+)\}?")
SOCKET: Final = "gpushared.socket"
_FOLDER: Final = Path("/etc/systemd/system")
_NAME: Final = "gpushare.conf"
_TEXT: Final = f"""\
# Created with the registration of {{launcher}}, and removed with it.
# Containers that start at boot find gpushared's socket.
[Unit]
Wants={SOCKET}
After={SOCKET}
"""
_LAUNCHER: Final = re.compile(r"^# Created with the registration of (.+), and", re.MULTILINE)


@dataclass(frozen=True)
class UnitStart:
    """A command line, and the unit file that sets it."""

    words: tuple[str, ...]
    file: Path

    def values(self, *flags: str) -> list[str]:
        """Return the values of `flags`, in the order of the command line."""
        flag_values: list[str] = []
        for word, following in zip(self.words, (*self.words[1:], ""), strict=True):
            name, equals, value = word.partition("=")
            if name in flags:
                flag_values.append(value if equals else following)
        return flag_values


def unit_start(service: str, root: Path = Path("/")) -> UnitStart | None:
    """Return the start command of the unit `<service>.service`, None if there is no such unit."""
    start: UnitStart | None = None
    variables: dict[str, str] = {}
    for file in _files(f"{service}.service", root):
        for key, value in _settings(read_text(file)):
            if key == "EnvironmentFile":
                path = Path(value.removeprefix("-"))
                variables |= _assignments(read_text(under_root(root, path)))
            elif key == "ExecStart":
                start = UnitStart(tuple(_words(value.lstrip(_PREFIXES))), file) if value else None
    if start is None:
        return None
    return UnitStart(tuple(_expanded(start.words, variables)), start.file)


def has_unit(service: str, root: Path = Path("/")) -> bool:
    """Whether there is a unit `<service>.service`."""
    files = [under_root(root, folder / f"{service}.service") for folder in _FOLDERS]
    return any(file.is_file() for file in files)


def _files(name: str, root: Path) -> Iterator[Path]:
    """Yield the unit's file and its drop-ins, in the order in which they are read."""
    folders = [under_root(root, folder) for folder in _FOLDERS]
    yield from [folder / name for folder in folders if (folder / name).is_file()][:1]
    drop_ins: dict[str, Path] = {}
    for folder in reversed(folders):
        drop_ins |= {path.name: path for path in (folder / f"{name}.d").glob("*.conf")}
    yield from (path for _, path in sorted(drop_ins.items()))


def _settings(text: str) -> Iterator[tuple[str, str]]:
    for line in text.replace("\\\n", " ").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", ";")):
            yield key.strip(), value.strip()


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _assignments(text: str) -> dict[str, str]:
    lines = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, equals, value in lines if equals}


def _expanded(words: tuple[str, ...], variables: dict[str, str]) -> Iterator[str]:
    for word in words:
        alone = _VARIABLE.fullmatch(word)
        if alone and not word.startswith("${"):
            yield from _words(variables.get(alone.group(1), ""))
        else:
            yield _VARIABLE.sub(lambda match: variables.get(match.group(1), ""), word)


class UnitDropIn(OwnFile):
    """The drop-in that orders an engine's unit."""

    def register(self, text: str, launcher: Path, *, default: bool) -> str:  # noqa: ARG002
        """Return the drop-in."""
        return _TEXT.format(launcher=launcher)

    def registered(self, text: str) -> Path | None:
        """Return the launcher whose registration created it, None for another program's file."""
        match = _LAUNCHER.search(text)
        return Path(match[1]) if match else None


def ordering_drop_ins(services: tuple[str, ...], root: Path = Path("/")) -> tuple[ConfigFile, ...]:
    """Return the drop-ins for those of `services` that have a unit under `root`."""
    return tuple(
        ConfigFile(under_root(root, _FOLDER / f"{service}.service.d" / _NAME), UnitDropIn())
        for service in services
        if has_unit(service, root)
    )
