# SPDX-License-Identifier: Apache-2.0
"""Where on a machine an engine reads of its runtimes: the files, and who edits them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

NAME: Final = "gpushare"


class Syntax(Protocol):
    """How one file of an engine is edited; text in, text out, BadConfiguration where it cannot."""

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the runtime in it, as the default where that is asked."""

    def unregister(self, text: str, original: str) -> str:
        """Return `text` without it; the default as in `original`."""

    def registered(self, text: str) -> Path | None:
        """Return the launcher that `text` names, None when the runtime is not in it."""

    def is_default(self, text: str) -> bool:
        """Return whether containers get the runtime without asking for it."""

    def remarks(self, text: str) -> list[str]:
        """Return what the user should know of this configuration."""


@dataclass(frozen=True)
class File:
    """One file of an engine's configuration."""

    path: Path
    syntax: Syntax


@dataclass(frozen=True)
class Place:
    """The files to edit, that which names the launcher first; `left` are those that name it too.

    `apply` is the command that makes the running engine read them again, empty where each start of
    a container does; `reloads`: it disturbs nothing that runs, and `restart` is what makes the
    engine forget too. `main` is the file that the engine
    is started with, where that is another; `owner` who starts it, where that is not the engine's
    own service ("k3s"). `default` is the program that a container gets now, None where the engine
    chooses (`runc`). `services` are the units that start the engine, where those are others than
    its own.
    """

    files: tuple[File, ...]
    apply: str
    reloads: bool = False
    restart: str = ""
    main: Path | None = None
    owner: str = ""
    socket: Path | None = None
    default: str | None = None
    remarks: tuple[str, ...] = ()
    left: tuple[File, ...] = ()
    services: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file that names the launcher."""
        return self.files[0].path

    @property
    def syntax(self) -> Syntax:
        """The syntax of that file."""
        return self.files[0].syntax


def beneath(root: Path, path: Path) -> Path:
    """Return the absolute `path` as it is called beneath `root`."""
    return root / path.relative_to("/")


def text_of(path: Path) -> str:
    """Return the text at `path`, empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
