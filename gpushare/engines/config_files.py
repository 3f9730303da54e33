# SPDX-License-Identifier: Apache-2.0
"""The files in which an engine configures its runtimes: adds the runtime, and removes it again.

The original file is kept as a backup next to it (`<name>.before-gpushare`). If the file has not
been edited since, removing the runtime restores the backup byte for byte. Otherwise only gpushare's
entries are removed. No record is needed for this: the file is unedited if registering the runtime
in the backup gives the current file.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Literal

from gpushare.errors import ErrorCode, UserError
from gpushare.oci.bounded_read import replace_file

SUFFIX: Final = ".before-gpushare"
NAME: Final = "gpushare"


#: How gpushare-undo removes the runtime from a file that was edited since: by its format, or, if
#: gpushare owns the file as a whole ("own"), by moving it away.
UndoneBy = Literal["json", "toml", "yaml", "own"]


class BadConfiguration(Exception):
    """A configuration that cannot be edited: the reason, and its `line` (0: unknown)."""

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.line = line


class EngineError(UserError):
    """An engine cannot be configured; names the file, the line and the fix."""


class Syntax(ABC):
    """Edits one file of an engine: text in, text out; BadConfiguration if it cannot be edited."""

    undone_by: ClassVar[UndoneBy]  # how gpushare-undo removes the runtime

    @abstractmethod
    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the runtime, as the default if requested."""

    @abstractmethod
    def unregister(self, text: str, original: str) -> str:
        """Return `text` without the runtime; the default as in `original`."""

    @abstractmethod
    def registered(self, text: str) -> Path | None:
        """Return the launcher that `text` names, None when the runtime is not in it."""

    def is_default(self, text: str) -> bool:  # noqa: ARG002 - other syntaxes take it
        """Return whether the runtime is the default."""
        return False

    def remarks(self, text: str) -> list[str]:  # noqa: ARG002
        """Return warnings about this configuration."""
        return []


class OwnFile(Syntax):
    """A file that gpushare owns as a whole, and that applies to every runtime."""

    undone_by: ClassVar[UndoneBy] = "own"

    def unregister(self, text: str, original: str) -> str:  # noqa: ARG002
        """Return `original`."""
        return original


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


@dataclass(frozen=True)
class FileChange:
    """A change of one file; None means that the file does not exist."""

    path: Path
    before: str | None
    after: str | None
    backup: str | None  # content of the backup to write; None: no backup
    remarks: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether anything changes."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as a unified diff, empty if nothing changes."""
        return "".join(
            difflib.unified_diff(
                (self.before or "").splitlines(keepends=True),
                (self.after or "").splitlines(keepends=True),
                str(self.path) if self.before is not None else "/dev/null",
                str(self.path) if self.after is not None else "/dev/null",
            )
        )

    def apply(self) -> None:
        """Write the file and its backup; OSError names a file that cannot be written."""
        if not self.needed:
            return
        kept = backup_path(self.path)
        if self.backup is not None:
            _write(kept, self.backup, like=self.path)
        if self.after is None:
            self.path.unlink(missing_ok=True)
            if self.path.parent.name.endswith(".service.d"):  # created for the drop-in
                with contextlib.suppress(OSError):
                    self.path.parent.rmdir()
        else:
            _write(self.path, self.after, like=self.path)
        if self.backup is None:
            kept.unlink(missing_ok=True)


def configure(location: ConfigLocation, launcher: Path, *, default: bool) -> list[FileChange]:
    """Return the changes that register `launcher`, the engine's own file first."""
    changes = [_configured(file, launcher, default=default) for file in location.files]
    first = replace(changes[0], remarks=(*changes[0].remarks, *location.remarks))
    return [first, *changes[1:]]


def unconfigure(location: ConfigLocation) -> list[FileChange]:
    """Return the changes that remove the runtime from every file that contains it."""
    return [_unconfigured(file) for file in (*location.files, *location.left)]


def registered_launcher(file: ConfigFile) -> Path | None:
    """Return the launcher that `file` names, or None."""
    text = _read(file.path)
    with naming(file.path):
        return file.syntax.registered(text) if text is not None else None


def _configured(file: ConfigFile, launcher: Path, *, default: bool) -> FileChange:
    before = _read(file.path)
    text = before or ""
    syntax = file.syntax
    with naming(file.path):
        known = syntax.registered(text)
        # If it is registered again, or after an upgrade, keep the backup of the first time.
        original = before if known is None else _original(file, text)
        after = syntax.register(text, launcher, default=default)
        remarks = tuple(syntax.remarks(after))
    return FileChange(file.path, before, after, original, remarks)


def _unconfigured(file: ConfigFile) -> FileChange:
    before = _read(file.path)
    with naming(file.path):
        if before is None or file.syntax.registered(before) is None:
            return FileChange(file.path, before, before, None)
        original = _original(file, before)
    return FileChange(file.path, before, original, None)


def backup_path(path: Path) -> Path:
    """Return the path of the file's backup."""
    return path.with_name(path.name + SUFFIX)


def _original(file: ConfigFile, text: str) -> str | None:
    """Return `text`, which contains the runtime, without it; None if no file remains."""
    syntax = file.syntax
    launcher, default = syntax.registered(text), syntax.is_default(text)
    assert launcher is not None
    kept = _read(backup_path(file.path))
    if syntax.register(kept or "", launcher, default=default) == text:
        return kept
    left = syntax.unregister(text, kept or "")
    if kept is None and left == syntax.unregister(
        syntax.register("", launcher, default=default), ""
    ):
        return None  # gpushare created the file, and it contains nothing else
    return left


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        text = f"{path} is not UTF-8 text. Nothing was changed"
        raise EngineError(text, code=ErrorCode.INVALID) from error


def _write(path: Path, text: str, *, like: Path) -> None:
    """Replace `path` in one rename, with the mode and owner of `like` if that exists."""
    target = path.resolve()  # a symbolic link is kept
    target.parent.mkdir(parents=True, exist_ok=True)
    status = like.stat() if like.exists() else None
    owner = (status.st_uid, status.st_gid) if status and os.geteuid() == 0 else None
    mode = status.st_mode & 0o7777 if status else 0o644
    replace_file(target, text.encode(), mode, owner=owner, synced=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make an EngineError of a BadConfiguration: its position is in the file at `path`."""
    try:
        yield
    except BadConfiguration as error:
        position = f"{path}:{error.line}" if error.line else str(path)
        text = f"{position}: {error}. Nothing was changed"
        raise EngineError(text, code=ErrorCode.INVALID) from error
