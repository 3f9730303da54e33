# SPDX-License-Identifier: Apache-2.0
"""The files in which an engine configures its runtimes, and the syntax that edits each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gpushare.errors import UserError

NAME: Final = "gpushare"


class BadConfiguration(Exception):
    """A configuration that cannot be edited: the reason, and its `line` (0: unknown)."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(what)
        self.line = line


class EngineError(UserError):
    """An engine cannot be configured; names the file, the line and the fix."""


class Syntax(Protocol):
    """Edits one file of an engine: text in, text out; BadConfiguration if it cannot be edited."""

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the runtime, as the default if requested."""

    def unregister(self, text: str, original: str) -> str:
        """Return `text` without the runtime; the default as in `original`."""

    def registered(self, text: str) -> Path | None:
        """Return the launcher that `text` names, None when the runtime is not in it."""

    def is_default(self, text: str) -> bool:
        """Return whether the runtime is the default."""

    def remarks(self, text: str) -> list[str]:
        """Return warnings about this configuration."""


@dataclass(frozen=True)
class ConfigFile:
    """One file of an engine's configuration."""

    path: Path
    syntax: Syntax


@dataclass(frozen=True)
class ConfigLocation:
    """The files to edit; the first names the launcher, those in `left` name it too.

    `apply` is the command that makes the running engine read the files again, empty if it reads
    them at each container start. If `reloads` is true, `apply` does not disturb running
    containers; `restart` is then the command after which the engine has also dropped removed
    entries. `main` is the file that the engine is started with, if different. `owner` is the
    program that starts the engine ("k3s"), if not its own service. `default` is the current
    default runtime's program, None for the engine's own choice (`runc`). `services` are the units
    that start the engine, if not its own.
    """

    files: tuple[ConfigFile, ...]
    apply: str
    reloads: bool = False
    restart: str = ""
    main: Path | None = None
    owner: str = ""
    socket: Path | None = None
    default: str | None = None
    remarks: tuple[str, ...] = ()
    left: tuple[ConfigFile, ...] = ()
    services: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file that names the launcher."""
        return self.files[0].path

    @property
    def syntax(self) -> Syntax:
        """The syntax of that file."""
        return self.files[0].syntax


def under_root(root: Path, path: Path) -> Path:
    """Return the absolute `path` as a path under `root`."""
    return root / path.relative_to("/")


def read_text(path: Path) -> str:
    """Return the text of the file at `path`, empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
