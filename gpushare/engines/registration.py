# SPDX-License-Identifier: Apache-2.0
"""Registers the runtime in an engine's configuration files, and removes it again.

The original file is kept as a backup next to it (`<name>.before-gpushare`). If the file has not
been edited since, removing the runtime restores the backup byte for byte. Otherwise only gpushare's
entries are removed. No record is needed for this: the file is unedited if registering the runtime
in the backup gives the current file.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpushare.engines.config_files import BadConfiguration, EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from gpushare.engines.config_files import ConfigFile, ConfigLocation

SUFFIX: Final = ".before-gpushare"


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
    try:
        return file.syntax.registered(text) if text is not None else None
    except BadConfiguration as error:
        raise _named(file.path, error) from error


def _configured(file: ConfigFile, launcher: Path, *, default: bool) -> FileChange:
    before = _read(file.path)
    text = before or ""
    syntax = file.syntax
    try:
        known = syntax.registered(text)
        # If it is registered again, or after an upgrade, keep the backup of the first time.
        original = before if known is None else _original(file, text)
        after = syntax.register(text, launcher, default=default)
        remarks = tuple(syntax.remarks(after))
    except BadConfiguration as error:
        raise _named(file.path, error) from error
    return FileChange(file.path, before, after, original, remarks)


def _unconfigured(file: ConfigFile) -> FileChange:
    before = _read(file.path)
    try:
        if before is None or file.syntax.registered(before) is None:
            return FileChange(file.path, before, before, None)
        original = _original(file, before)
    except BadConfiguration as error:
        raise _named(file.path, error) from error
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
        raise EngineError(f"{path} is not UTF-8 text. Nothing was changed") from error


def _write(path: Path, text: str, *, like: Path) -> None:
    """Replace `path` in one rename, with the mode and owner of `like` if that exists."""
    target = path.resolve()  # a symbolic link is kept
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if like.exists():
                status = like.stat()
                os.fchmod(descriptor, status.st_mode & 0o7777)
                if os.geteuid() == 0:
                    os.fchown(descriptor, status.st_uid, status.st_gid)
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
        draft.rename(target)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _named(path: Path, error: BadConfiguration) -> EngineError:
    position = f"{path}:{error.line}" if error.line else str(path)
    return EngineError(f"{position}: {error}. Nothing was changed")
