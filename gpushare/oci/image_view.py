# SPDX-License-Identifier: Apache-2.0
"""A container's root filesystem, looked at once: what was found is kept for the rest of a create.

A name is looked up in its directory's descriptor, one part at a time, and never through a link: a
link's text is followed here, beneath the root. So an answer never depends on the host, as with
openat2(2) in rootfs.py, and the second question about a name costs nothing.

`seen` returns all that the answers depended on, and `matches` tells whether another root is the
same in that: an image that is started again. Names, links and kinds are compared one by one, files
by their bytes. A directory of which all names mattered has a stamp: inode, size, and the times of
its content and its change. An image cannot choose the time of change, unless its file system has
none and shows the other time in its place. Then, and where a stamp differs, the names are read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import stat
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from gpushare.oci.container import ContainerEdits, devices
from gpushare.oci.edits import Edits, Hook, Mount
from gpushare.oci.loader import MergedCache
from gpushare.oci.rootfs import (
    MOST_LINKS,
    Rootfs,
    RootfsError,
    names_in,
    parts_of,
    read_regular,
    spoken,
    stamp_of,
)

_MOST_BYTES: Final = 512 << 10  # of contents and paths that are kept of one image
_MOST_LOOKS: Final = 4096

#: The kind of a name: where a link leads, the letter of another kind, or None: there is nothing.
NameKind: TypeAlias = "str | None"
_DIRECTORY: Final = "d"
_FILE: Final = "f"
_OTHER: Final = "o"
_LINK: Final = "l"  # and the text behind it


_ContentKey: TypeAlias = "tuple[str, int, bool]"  # path, bytes, whether the file has no more


#: The created names: the kind and the path of each.
Created: TypeAlias = "tuple[tuple[str, str], ...]"


@dataclass(frozen=True)
class DirectorySeen:
    """The observed part of the directory at `path`, which contains no link.

    `names` are those that were looked up. Where all names mattered, `stamp` is what the directory
    is known by, and `listing` a digest of the names.
    """

    path: str
    names: tuple[tuple[str, NameKind], ...]
    stamp: tuple[int, ...] = ()
    listing: bytes = b""


@dataclass(frozen=True)
class Seen:
    """All that was seen of an image: directories, each after its parent, and parts of files."""

    directories: tuple[DirectorySeen, ...]
    contents: tuple[tuple[_ContentKey, bytes], ...]


class ImageView(Rootfs):
    """The tree beneath `fd`, for one create; `close` it. Not for several threads.

    What it creates itself is not part of what was `seen`.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._kinds: dict[str, NameKind] = {}
        self._first: dict[str, NameKind] = {}  # before anything was created here
        self._fds: dict[str, int] = {"": fd}
        self._listed: dict[str, tuple[tuple[int, ...], list[str]]] = {}
        self._contents: dict[_ContentKey, bytes] = {}
        self._changed: set[str] = set()  # directories that got a new name
        self._is_repeatable = True  # whether the same image gives the same answers
        self._created: list[tuple[str, str]] = []
        self._made_in: dict[str, int] = {}  # directories that got a new name, on the root's mount

    def close(self) -> None:
        """Close the directories; not the root, which is the caller's."""
        for fd in (*self._fds.values(), *self._made_in.values()):
            if fd != self.fd:
                os.close(fd)
        self._fds, self._made_in = {"": self.fd}, {}

    # What is asked

    def exists(self, path: str) -> bool:
        """Whether `path` leads to anything."""
        return self._kind_at(path) is not None

    def is_directory(self, path: str) -> bool:
        """Whether `path` leads to a directory."""
        return self._kind_at(path) == _DIRECTORY

    def is_file(self, path: str) -> bool:
        """Whether `path` leads to a regular file."""
        return self._kind_at(path) == _FILE

    def directory_stamp(self, path: str) -> tuple[int, ...]:
        """Return what the directory at `path` is known by; empty: it is none."""
        fd = self._directory_at(path)
        return self._list(fd)[0] if fd is not None else ()

    def names(self, directory: str) -> list[str]:
        """Return the names in `directory`, as Rootfs does."""
        fd = self._directory_at(directory)
        return list(self._list(fd)[1]) if fd is not None else []

    def read(self, path: str, limit: int) -> bytes | None:
        """Return the content of the regular file at `path`, as Rootfs does."""
        kind, place = self._walk(path)
        if kind is None:
            return None
        try:
            return self._content(place, limit, whole=True)
        except OSError:
            self._is_repeatable = False
            raise

    def head(self, path: str, size: int) -> bytes | None:
        """Return the first `size` bytes of the file at `path`, as Rootfs does."""
        kind, place = self._walk(path)
        if kind != _FILE:
            return None
        try:
            return self._content(place, size, whole=False)
        except OSError:
            self._is_repeatable = False
            return None

    def resolve(self, path: str) -> str:
        """Return where a mount at `path` really lands, as Rootfs does."""
        return self._walk(path)[1]

    @contextmanager
    def open(self, path: str, flags: int, *, same_mount: bool = False) -> Iterator[int]:
        """Open `path`, as Rootfs does; what is done with it is not part of what was seen."""
        self._is_repeatable = False
        with super().open(path, flags, same_mount=same_mount) as fd:
            yield fd

    # What is created

    def make_directory(self, path: str) -> None:
        """Create the directory at `path`, as Rootfs does."""
        super().make_directory(path)
        self._note(path, _DIRECTORY)

    def make_file(self, path: str) -> None:
        """Create an empty file at `path`, as Rootfs does."""
        super().make_file(path)
        self._note(path, _FILE)

    def make_link(self, path: str, target: str) -> None:
        """Create a link at `path`, as Rootfs does."""
        super().make_link(path, target)
        self._note(path, _LINK + target)

    @property
    def created(self) -> Created:
        """The names that were created here so far, in this order."""
        return tuple(self._created)

    def create(self, created: Created) -> None:
        """Create what was created for a container of the same image; OSError for a link."""
        for kind, path in created:
            if kind[0] == _LINK:
                self.make_link(path, kind[1:])
                continue
            with suppress(OSError):  # the low-level runtime reports it, or succeeds
                (self.make_directory if kind == _DIRECTORY else self.make_file)(path)

    @contextmanager
    def _made(self, path: str) -> Iterator[int]:
        if path not in self._made_in:
            self._made_in[path] = self._open_made(path.strip("/") or ".")
        yield self._made_in[path]

    # What was seen

    def seen(self) -> Seen | None:
        """Return what the answers depended on; None where they depended on more, or on too much."""
        size = sum(map(len, self._contents.values())) + sum(map(len, self._first))
        looks = len(self._first) + len(self._listed)
        if not self._is_repeatable or size > _MOST_BYTES or looks > _MOST_LOOKS:
            return None
        names: dict[str, list[tuple[str, NameKind]]] = {path: [] for path in self._listed}
        for path, kind in self._first.items():
            parent, _, name = path.rpartition("/")
            if parent == "" or self._first.get(parent) == _DIRECTORY:  # else it cannot be there
                names.setdefault(parent, []).append((name, kind))
        return Seen(
            tuple(
                DirectorySeen(path, tuple(names[path]), *self._listing(path))
                for path in sorted(names)
            ),
            tuple(self._contents.items()),
        )

    def matches(self, seen: Seen) -> bool:
        """Whether all that was `seen` of an image is so here."""
        try:
            return all(map(self._is_same, seen.directories)) and all(
                self._content(path, limit, whole=whole) == data
                for (path, limit, whole), data in seen.contents
            )
        except OSError:
            return False

    def _is_same(self, seen: DirectorySeen) -> bool:
        path = seen.path
        if seen.stamp:
            fd = self._directory(path)
            if fd is None:
                return False
            if _is_telling(seen.stamp) and stamp_of(fd) == seen.stamp:
                for name, kind in seen.names:
                    self._kinds[f"{path}/{name}"] = kind
                return True
            if _digest(self._list(path)[1]) != seen.listing:
                return False
        return all(self._kind(path, name) == kind for name, kind in seen.names)

    def _listing(self, path: str) -> tuple[tuple[int, ...], bytes]:
        if path not in self._listed:
            return (), b""
        stamp, names = self._listed[path]
        return stamp, _digest(names)

    # How it is found

    def _note(self, path: str, kind: str) -> None:
        """Note what was created at `path`, with what was missing above it."""
        self._created.append((kind, path))
        parent = posixpath.dirname(path)
        while parent != "/" and self._kinds.get(parent, _DIRECTORY) is None:
            self._kinds[parent] = _DIRECTORY
            parent = posixpath.dirname(parent)
        self._changed.add("" if parent == "/" else parent)
        self._kinds[path] = kind

    def _kind_at(self, path: str) -> NameKind:
        try:
            return self._walk(path)[0]
        except RootfsError:
            return None

    def _directory_at(self, path: str) -> str | None:
        try:
            kind, place = self._walk(path)
        except RootfsError:
            return None
        return place.rstrip("/") if kind == _DIRECTORY else None

    def _walk(self, path: str) -> tuple[NameKind, str]:
        """Return what `path` leads to, and its path without links, as Rootfs.resolve does."""
        todo = parts_of(path)
        done: list[str] = []
        kind: NameKind = _DIRECTORY
        is_there = True
        links = 0
        while todo:
            name = todo.pop()
            is_there = is_there and kind == _DIRECTORY
            if name == "..":
                del done[-1:]
                kind = self._kind_of("/".join(done)) if done else _DIRECTORY
                continue
            above = "/" + "/".join(done) if done else ""
            kind = self._kind(above, name)
            if kind is None or kind[0] != _LINK:
                done.append(name)
                continue
            links += 1
            if links > MOST_LINKS:
                raise RootfsError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if kind[1:2] == "/":
                done.clear()
            todo += parts_of(kind[1:])
            kind = _DIRECTORY  # the link's own folder, until the next part is looked up
        return kind if is_there else None, spoken("/" + "/".join(done))

    def _kind_of(self, path: str) -> NameKind:
        parent, _, name = path.rpartition("/")
        return self._kind(parent, name)

    def _kind(self, parent: str, name: str) -> NameKind:
        """Return what `name` is in the directory at `parent`."""
        path = f"{parent}/{name}"
        try:
            return self._kinds[path]
        except KeyError:
            pass
        fd = self._directory(parent)
        kind = None if fd is None else _look(fd, name)
        self._kinds[path] = kind
        self._first.setdefault(path, kind)
        return kind

    def _directory(self, path: str) -> int | None:
        """Return a descriptor of the directory at `path`; None where it is none."""
        fd = self._fds.get(path)
        if fd is not None:
            return fd
        parent, _, name = path.rpartition("/")
        if self._kind(parent, name) != _DIRECTORY:
            return None
        above = self._directory(parent)
        if above is None:
            return None
        try:
            fd = os.open(name, _LOOK | os.O_DIRECTORY, dir_fd=above)
        except OSError:
            return None  # it was a directory a moment ago
        self._fds[path] = fd
        return fd

    def _list(self, path: str) -> tuple[tuple[int, ...], list[str]]:
        """Return the stamp and the names of the directory at `path`."""
        if path not in self._listed:
            self._is_repeatable &= path not in self._changed
            fd = self._directory(path)
            if fd is None:
                return (), []
            stamp = stamp_of(fd)  # before the names: what comes in between makes it another
            self._listed[path] = stamp, names_in(fd)
        return self._listed[path]

    def _content(self, path: str, limit: int, *, whole: bool) -> bytes:
        """Return at most `limit` bytes of the regular file at `path`; RootfsError if it is none.

        The `whole` file, which must not be longer, or its beginning.
        """
        key = path, limit, whole
        if key not in self._contents:
            parent, _, name = path.rpartition("/")
            fd = self._directory(parent)
            if fd is None:
                raise RootfsError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            opened = os.open(name, _LOOK, dir_fd=fd)
            try:
                data = read_regular(opened, path, limit, whole=whole)
            finally:
                os.close(opened)
            self._contents[key] = data
        return self._contents[key]


_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def _look(directory: int, name: str) -> NameKind:
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return _LINK + os.readlink(name, dir_fd=directory)
    except OSError:
        return None
    return _DIRECTORY if stat.S_ISDIR(mode) else _FILE if stat.S_ISREG(mode) else _OTHER


def _digest(names: list[str]) -> bytes:
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).digest()


def _is_telling(stamp: tuple[int, ...]) -> bool:
    """Whether the time of change is one: a file system without it shows that of the content."""
    _, _, modified, changed = stamp
    return modified != changed


# --- what a container of an image gets, kept for the next container of the same image ---
#
# Most of a create is spent on questions about the image of which the answers are known: where its
# loader is, which of its names lead to the driver, what its loader cache lists. They are kept with
# all that they depended on (`Seen`), and that is compared before each use. So no list has to say
# what an image is: another image, or this one after a change, does not match.
#
# An entry depends on the driver and the configuration too: those that it was made under are
# compared by identity, and all is forgotten when there are others.

_MOST: Final = 64  # entries; one has a few hundred names and at most 512 KiB of files


@dataclass(frozen=True)
class PreparedImage:
    """The result of the preparation for a container of an image.

    `wanted` are its edits with every mount where it goes, for a tenant whose folder was
    `tenant_directory`; `created` are the mount points that were missing in its layer.
    """

    seen: Seen
    created: Created
    wanted: ContainerEdits
    cache: MergedCache | None
    tenant_directory: str

    def edits_of(self, tenant_directory: str, hooks: tuple[Hook, ...]) -> Edits:
        """Return the edits for the tenant whose folder is `tenant_directory`.

        The numbers of devices are read anew: they change with the driver's modules. CdiError where
        the host does not have a device any more.
        """
        edits = self.wanted.edits
        return replace(
            edits,
            mounts=tuple(self._of_tenant(mount, tenant_directory) for mount in edits.mounts),
            devices=devices(self.wanted.nodes),
            hooks=hooks,
        )

    def _of_tenant(self, mount: Mount, tenant_directory: str) -> Mount:
        before = self.tenant_directory
        if mount.source != before and not mount.source.startswith(f"{before}/"):
            return mount
        return replace(mount, source=tenant_directory + mount.source.removeprefix(before))


class PreparedImages:
    """The entries that were used last, for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made_under: tuple[object, ...] = ()
        self._entries: OrderedDict[Hashable, PreparedImage] = OrderedDict()

    def find(
        self, made_under: tuple[object, ...], request: Hashable, image: ImageView
    ) -> PreparedImage | None:
        """Return what was kept for `request`, where `image` is what it was made for.

        `made_under` are the objects that all entries depend on: other ones, and all are forgotten.
        """
        with self._lock:
            if not self._is_under(made_under):
                return None
            prepared = self._entries.get(request)
            if prepared is not None:
                self._entries.move_to_end(request)
        return prepared if prepared is not None and image.matches(prepared.seen) else None

    def keep(
        self, made_under: tuple[object, ...], request: Hashable, prepared: PreparedImage
    ) -> None:
        """Keep `prepared` in place of an earlier entry for `request`."""
        with self._lock:
            if not self._is_under(made_under):
                self._made_under = made_under
                self._entries.clear()
            self._entries[request] = prepared
            self._entries.move_to_end(request)
            while len(self._entries) > _MOST:
                self._entries.popitem(last=False)

    def _is_under(self, made_under: tuple[object, ...]) -> bool:
        if len(made_under) != len(self._made_under):
            return False
        return all(a is b for a, b in zip(made_under, self._made_under, strict=True))
