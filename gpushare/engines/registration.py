# SPDX-License-Identifier: Apache-2.0
"""Registers the runtime in an engine's configuration files, and takes it out again.

The file as it was is kept beside it (`<name>.before-gpushare`). Taking the runtime out puts those
bytes back when nobody has edited the file since; else only our entries go, and the rest stays as it
was edited. "Nobody has edited" needs no record: it is so when registering in the kept file gives
the present one.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpushare.engines.errors import BadConfiguration, EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from gpushare.engines.place import File, Place

SUFFIX: Final = ".before-gpushare"


@dataclass(frozen=True)
class Change:
    """What happens to one file: None is a file that is not there."""

    path: Path
    before: str | None
    after: str | None
    backup: str | None  # to be kept beside it; None: nothing is kept
    remarks: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether anything changes."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as a unified diff, empty when there is none."""
        return "".join(
            difflib.unified_diff(
                (self.before or "").splitlines(keepends=True),
                (self.after or "").splitlines(keepends=True),
                str(self.path) if self.before is not None else "/dev/null",
                str(self.path) if self.after is not None else "/dev/null",
            )
        )

    def apply(self) -> None:
        """Write the file and what is kept beside it; OSError names the file that cannot be."""
        if not self.needed:
            return
        kept = backup_of(self.path)
        if self.backup is not None:
            _write(kept, self.backup, like=self.path)
        if self.after is None:
            self.path.unlink(missing_ok=True)
            if self.path.parent.name.endswith(".service.d"):  # made for the drop-in in it
                with contextlib.suppress(OSError):
                    self.path.parent.rmdir()
        else:
            _write(self.path, self.after, like=self.path)
        if self.backup is None:
            kept.unlink(missing_ok=True)


def configure(place: Place, launcher: Path, *, default: bool) -> list[Change]:
    """Return the changes that register `launcher`; the engine's own file is the first."""
    changes = [_configured(file, launcher, default=default) for file in place.files]
    first = replace(changes[0], remarks=(*changes[0].remarks, *place.remarks))
    return [first, *changes[1:]]


def unconfigure(place: Place) -> list[Change]:
    """Return the changes that take the runtime out, wherever it was put."""
    return [_unconfigured(file) for file in (*place.files, *place.left)]


def registered(file: File) -> Path | None:
    """Return the launcher that `file` names, None when it names none."""
    text = _read(file.path)
    try:
        return file.syntax.registered(text) if text is not None else None
    except BadConfiguration as error:
        raise _named(file.path, error) from error


def _configured(file: File, launcher: Path, *, default: bool) -> Change:
    before = _read(file.path)
    text = before or ""
    syntax = file.syntax
    try:
        known = syntax.registered(text)
        # Again, or after an upgrade: what is kept is the file from before the first time.
        original = before if known is None else _original(file, text)
        after = syntax.register(text, launcher, default=default)
        remarks = tuple(syntax.remarks(after))
    except BadConfiguration as error:
        raise _named(file.path, error) from error
    return Change(file.path, before, after, original, remarks)


def _unconfigured(file: File) -> Change:
    before = _read(file.path)
    try:
        if before is None or file.syntax.registered(before) is None:
            return Change(file.path, before, before, None)
        original = _original(file, before)
    except BadConfiguration as error:
        raise _named(file.path, error) from error
    return Change(file.path, before, original, None)


def backup_of(path: Path) -> Path:
    """Return where the file as it was is kept."""
    return path.with_name(path.name + SUFFIX)


def _original(file: File, text: str) -> str | None:
    """Return what `text`, which has the runtime in it, is without: None for no file."""
    syntax = file.syntax
    launcher, default = syntax.registered(text), syntax.is_default(text)
    assert launcher is not None
    kept = _read(backup_of(file.path))
    if syntax.register(kept or "", launcher, default=default) == text:
        return kept
    left = syntax.unregister(text, kept or "")
    if kept is None and left == syntax.unregister(
        syntax.register("", launcher, default=default), ""
    ):
        return None  # nobody has written anything into the file that we made
    return left


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise EngineError(f"{path} is not UTF-8 text; nothing was changed") from error


def _write(path: Path, text: str, *, like: Path) -> None:
    """Replace `path` in one rename, with the mode and owner of `like` where that is there."""
    target = path.resolve()  # a link stays one
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
    place = f"{path}:{error.line}" if error.line else str(path)
    return EngineError(f"{place}: {error}; nothing was changed")
