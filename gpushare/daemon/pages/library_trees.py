# SPDX-License-Identifier: Apache-2.0
"""The libraries that every container with a share gets, mounted as one tree ahead of need.

The tree is a read-only tmpfs with a mount for each library, at `<tenants>/.tree-<digest>`. A
container gets a copy of it by one rbind (oci/mount_points.py). Every mount in the tree is ro,
nosuid and nodev by itself, because the flags of an rbind are those of its topmost mount only.

The digest is that of the files' paths and identities: another driver, or other libraries of ours,
are another tree. A tree appears whole, by one mount, so whatever stands under such a name after a
crash is complete; and runtimes in mount namespaces that are slaves of this one get all of it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gpushare.host import mounts

_TREE: Final = ".tree-"
_DRAFT: Final = f"{_TREE}new"
_FLAGS: Final = mounts.MS_NOSUID | mounts.MS_NODEV
_TOP_FLAGS: Final = _FLAGS | mounts.MS_NOEXEC

_Identity = tuple[tuple[str, str, int, int], ...]


class _Current(NamedTuple):
    """The tree that new containers get, and the device of its file system."""

    identity: _Identity
    path: Path
    device: int


class LibraryTrees:
    """The trees beneath `root`; only `find` is for threads outside the mount namespace."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._making = threading.Lock()
        self._root_fd = -1  # of `root` in the mount namespace
        self._current: _Current | None = None
        self._is_closed = False

    def enter(self) -> None:
        """Open `root`; remove what a gpushared left that was killed while it made a tree."""
        self._root_fd = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._remove(self._root / _DRAFT)

    def find(self, identity: _Identity) -> Path | None:
        """Return the tree of these files, if it is the current one and still mounted."""
        current = self._current
        if current is None or current.identity != identity:
            return None
        try:
            status = os.stat(current.path.name, dir_fd=self._root_fd)
        except OSError:
            return None
        return current.path if status.st_dev == current.device else None

    def make(self, top: str, files: Mapping[str, str], identity: _Identity) -> Path:
        """Return the tree of `files`, which stand beneath `top` in a container; OSError.

        It may be one of an earlier gpushared.
        """
        with self._making:
            if self._is_closed:
                raise OSError(errno.ESHUTDOWN, os.strerror(errno.ESHUTDOWN), str(self._root))
            path = self.find(identity)
            if path is None:
                digest = hashlib.sha256(repr((top, identity)).encode()).hexdigest()[:16]
                path = self._root / f"{_TREE}{digest}"
                if not path.is_mount():
                    self._mount(path, top, files)
                self._current = _Current(identity, path, path.stat().st_dev)
            return path

    def stale(self) -> list[str]:
        """Return the names of the trees that no new container gets."""
        current = self._current
        kept = "" if current is None else current.path.name
        return [name for name in self._names() if name != kept]

    def drop(self, names: Collection[str]) -> None:
        """Unmount these trees, except the current one."""
        with self._making:
            for name in set(self.stale()).intersection(names):
                self._remove(self._root / name)

    def close(self) -> None:
        """Unmount every tree, and make none any more: gpushared ends."""
        with self._making:
            self._is_closed = True
            self._current = None
            for name in self._names():
                self._remove(self._root / name)

    def _names(self) -> list[str]:
        found = (entry.name for entry in self._root.iterdir())
        return sorted(name for name in found if name.startswith(_TREE) and name != _DRAFT)

    def _mount(self, path: Path, top: str, files: Mapping[str, str]) -> None:
        draft = self._root / _DRAFT
        self._remove(draft)
        draft.mkdir(mode=0o700)
        try:
            mounts.tmpfs(draft, flags=_TOP_FLAGS, data="mode=755,size=1m")
            # Other namespaces get the whole tree or nothing of it, never a part.
            mounts.mount("none", draft, flags=mounts.MS_PRIVATE)
            for destination, source in files.items():
                target = draft / os.path.relpath(destination, top)
                _make_directory(target.parent)
                target.touch()
                target.chmod(0o444)
                mounts.bind(source, target, read_only=True, flags=_FLAGS)
            _make_directory(draft / _TENANT)
            read_only = mounts.MS_REMOUNT | mounts.MS_RDONLY
            mounts.mount("none", draft, flags=read_only | _TOP_FLAGS)
            path.mkdir(mode=0o700, exist_ok=True)
            mounts.bind(draft, path, recursive=True)
        finally:
            self._remove(draft)

    def _remove(self, path: Path) -> None:
        mounts.unmount_all(path)
        with contextlib.suppress(FileNotFoundError):
            path.rmdir()


def identify(files: Mapping[str, str]) -> _Identity:
    """Return what tells `files` from others, also from new ones at the same paths; OSError."""
    return tuple(
        (destination, source, status.st_dev, status.st_ino)
        for destination, source in files.items()
        for status in (os.stat(source),)  # noqa: PTH116 - a string, for each create
    )


_TENANT: Final = "tenant"  # where a container has its tenant's pages mounted


def _make_directory(path: Path) -> None:
    path.mkdir(exist_ok=True)
    path.chmod(0o755)  # whatever the umask is
