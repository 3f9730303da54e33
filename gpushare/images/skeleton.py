# SPDX-License-Identifier: Apache-2.0
"""The names of an image's tar, of those files that are looked for, as a tree of empty files.

A tar is the image's word: what leaves the tree, or goes through a link of it, is passed over; no
content is kept, and there is a bound to how many names are.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.compat import runtimes

_MOST_NAMES: Final = 1 << 16
_DEEPEST: Final = 32
#: Links on the way to what is looked for: /usr/local/cuda-12.4/lib64 is one, so deep.
_LINKS_DEEPEST: Final = 4
_COMPAT: Final = re.compile(r"libcuda\.so\.[0-9]{3,}(\.[0-9]+)+", re.ASCII)
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Skeleton:
    """A tree beneath `fd`; one layer is put over another by adding it later."""

    fd: int
    names: int = 0
    note: str = ""  # what could not be looked at

    @classmethod
    @contextlib.contextmanager
    def made(cls) -> Iterator[Skeleton]:
        """Make an empty one in a temporary directory, which goes with it."""
        with tempfile.TemporaryDirectory(prefix="gpushare-compat-") as folder:
            fd = os.open(folder, _DIRECTORY)
            try:
                yield cls(fd)
            finally:
                os.close(fd)

    def add(self, tar: tarfile.TarFile) -> None:
        """Put the names of a layer, or of a whole export, into the tree; tarfile.TarError."""
        for member in tar:
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if parts and ".." not in parts and len(parts) <= _DEEPEST:
                # One that is not as it should be is the image's own loss.
                with contextlib.suppress(OSError):
                    self._put(member, parts)
            if self.names > _MOST_NAMES:
                self.note = f"it has over {_MOST_NAMES} such names: the rest was not looked at"
                return

    def _put(self, member: tarfile.TarInfo, parts: list[str]) -> None:
        name = parts[-1]
        if name == _OPAQUE:
            self._remove(parts[:-1])
        elif name.startswith(_WHITEOUT):
            self._remove([*parts[:-1], name.removeprefix(_WHITEOUT)])
        elif member.issym():
            if len(parts) > _LINKS_DEEPEST and not _is_wanted(name):
                return
            self._remove(parts)
            with self._folder(parts[:-1]) as fd:
                os.symlink(member.linkname, name, dir_fd=fd)
        elif member.isfile() or member.islnk():
            if _is_wanted(name):
                with self._folder(parts[:-1]) as fd:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                    os.close(os.open(name, flags, 0o600, dir_fd=fd))
            else:
                self._put_around(parts[:-1])
        elif member.isdir():
            self._put_around(parts)

    def _put_around(self, parts: list[str]) -> None:
        """Make that directory among `parts` that is looked for; what is in it is not."""
        for length in range(len(parts), 0, -1):
            if _is_wanted(parts[length - 1]):
                with self._folder(parts[:length]):
                    return

    @contextlib.contextmanager
    def _folder(self, parts: list[str], *, make: bool = True) -> Iterator[int]:
        """Open a directory of the tree, made where it is missing; OSError where a link is met."""
        fd = os.dup(self.fd)
        try:
            for part in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=fd)
                        self.names += 1
                below = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
            self.names += 1
            yield fd
        finally:
            os.close(fd)

    def _remove(self, parts: list[str]) -> None:
        with contextlib.suppress(FileNotFoundError), self._folder(parts[:-1], make=False) as fd:
            if not parts:
                return
            try:
                os.unlink(parts[-1], dir_fd=fd)
            except (IsADirectoryError, PermissionError):
                shutil.rmtree(Path(f"/proc/self/fd/{fd}") / parts[-1])


def _is_wanted(name: str) -> bool:
    return runtimes.is_told(name) or _COMPAT.fullmatch(name) is not None
