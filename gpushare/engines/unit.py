# SPDX-License-Identifier: Apache-2.0
"""With which words systemd starts an engine. Source: systemd.unit(5), systemd.service(5)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.engines.place import beneath, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDERS: Final = tuple(  # the first that has a file of a name holds
    Path(folder) / "systemd/system"
    for folder in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
)
_PREFIXES: Final = "-@:+!"  # of a command in ExecStart
_VARIABLE: Final = re.compile(r"\$\{?(\w+)\}?")


@dataclass(frozen=True)
class Start:
    """A command line, and the file of the unit that says it."""

    words: tuple[str, ...]
    file: Path

    def values(self, *flags: str) -> list[str]:
        """Return the value of each of `flags` where it is given, in the order of the line."""
        found: list[str] = []
        for word, following in zip(self.words, (*self.words[1:], ""), strict=True):
            name, equals, value = word.partition("=")
            if name in flags:
                found.append(value if equals else following)
        return found


def start_of(service: str, root: Path = Path("/")) -> Start | None:
    """Return how the unit `<service>.service` is started, None where there is no such unit."""
    start: Start | None = None
    variables: dict[str, str] = {}
    for file in _files(f"{service}.service", root):
        for key, value in _settings(text_of(file)):
            if key == "EnvironmentFile":
                path = Path(value.removeprefix("-"))
                variables |= _assignments(text_of(beneath(root, path)))
            elif key == "ExecStart":
                start = Start(tuple(_words(value.lstrip(_PREFIXES))), file) if value else None
    if start is None:
        return None
    return Start(tuple(_expanded(start.words, variables)), start.file)


def is_there(service: str, root: Path = Path("/")) -> bool:
    """Whether there is a unit `<service>.service`."""
    places = [beneath(root, folder / f"{service}.service") for folder in _FOLDERS]
    return any(place.is_file() for place in places)


def _files(name: str, root: Path) -> Iterator[Path]:
    """Yield the unit's file and its drop-ins, in the order in which they are read."""
    folders = [beneath(root, folder) for folder in _FOLDERS]
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
    said = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, equals, value in said if equals}


def _expanded(words: tuple[str, ...], variables: dict[str, str]) -> Iterator[str]:
    for word in words:
        alone = _VARIABLE.fullmatch(word)
        if alone and not word.startswith("${"):
            yield from _words(variables.get(alone.group(1), ""))
        else:
            yield _VARIABLE.sub(lambda match: variables.get(match.group(1), ""), word)
