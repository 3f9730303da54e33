# SPDX-License-Identifier: Apache-2.0
"""A container's root filesystem, reached through one descriptor and never by a path of the host.

Its content is the image's, and may be hostile: links to the host, files swapped while we look,
devices and pipes in place of files. openat2(2) with RESOLVE_IN_ROOT keeps every look-up beneath the
root, RESOLVE_NO_MAGICLINKS keeps /proc links out, and nothing is looked up a second time once it
has been checked. Nothing of it is executed.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gpushare.oci.bounded_read import read_at_most, replace_file

_SYS_OPENAT2: Final = 437  # the same on every architecture (asm-generic/unistd.h)
RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_IN_ROOT: Final = 0x10
_BENEATH: Final = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
MOST_LINKS: Final = 40  # MAXSYMLINKS of the kernel
_MOST_NAMES: Final = 4096
_RACES: Final = 128  # EAGAIN: a rename somewhere on the system while `..` was being resolved


class OldKernelError(RuntimeError):
    """This kernel has no openat2(2), so no rootfs can be looked into safely."""


class RootfsError(OSError):
    """Something in the rootfs is not what it has to be; the message names it."""


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_SIZE: Final = ctypes.c_size_t(ctypes.sizeof(_OpenHow))
_libc.syscall.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(_OpenHow),
    ctypes.c_size_t,
)


class Rootfs:
    """The tree beneath `fd`, a descriptor of its root directory that the caller keeps open."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @contextmanager
    def open(self, path: str, flags: int, *, same_mount: bool = False) -> Iterator[int]:
        """Open `path` as a process whose root this is would; OSError, OldKernelError.

        `same_mount` refuses to cross into another mount (EXDEV).
        """
        resolve = _BENEATH | (RESOLVE_NO_XDEV if same_mount else 0)
        fd = openat2(self.fd, path, flags, resolve)
        try:
            yield fd
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close what was opened for the answers; the root is the caller's."""

    def _stat(self, path: str) -> os.stat_result | None:
        """Return what `path` leads to, None where that is nothing; nothing is opened for it."""
        fd = _tried(self.fd, path, os.O_PATH | os.O_CLOEXEC, _BENEATH)
        if fd < 0:
            return None
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        """Whether `path` leads to anything."""
        return self._stat(path) is not None

    def is_directory(self, path: str) -> bool:
        """Whether `path` leads to a directory."""
        status = self._stat(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def is_file(self, path: str) -> bool:
        """Whether `path` leads to a regular file."""
        status = self._stat(path)
        return status is not None and stat.S_ISREG(status.st_mode)

    def directory_stamp(self, path: str) -> tuple[int, ...]:
        """Return what the directory at `path` and its names are known by; empty: it is none."""
        status = self._stat(path)
        return () if status is None or not stat.S_ISDIR(status.st_mode) else _stamp(status)

    def names(self, directory: str) -> list[str]:
        """Return the names in `directory`, sorted; empty where it is none, or absurdly large."""
        try:
            with self.open(directory, os.O_PATH | os.O_DIRECTORY) as fd:
                return names_in(fd)
        except OSError:
            return []

    def read(self, path: str, limit: int) -> bytes | None:
        """Return the content of the regular file at `path`; None where there is nothing.

        RootfsError where it is no regular file or longer than `limit` bytes.
        """
        try:
            with self.open(path, os.O_PATH) as fd:
                return read_regular(fd, path, limit)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def head(self, path: str, size: int) -> bytes | None:
        """Return the first `size` bytes of the regular file at `path`; None where there is none."""
        try:
            with self.open(path, os.O_PATH) as fd:
                return read_regular(fd, path, size, whole=False)
        except OSError:
            return None

    def replace(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Put a file with `data` at `path` by one rename in the directory that holds it.

        What is there keeps its mode and owner; a link there is replaced, not followed. The
        directory must be on the mount of the root. OSError, EROFS above all, where it is not
        writable.
        """
        directory, _, name = path.rpartition("/")
        with self.open(
            directory or "/", os.O_RDONLY | os.O_DIRECTORY, same_mount=True
        ) as directory_fd:
            _replace(directory_fd, name, data, mode)

    def make_directory(self, path: str) -> None:
        """Create the directory at `path`, which contains no link, and its parents; OSError."""
        with self._made(path):
            pass

    def make_file(self, path: str) -> None:
        """Create an empty file at `path`, which contains no link, and its parents; OSError."""
        directory, _, name = path.rpartition("/")
        with self._made(directory) as fd:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            new_fd = os.open(name, flags, 0o600, dir_fd=fd)
            _own_as_above(fd, new_fd, 0o644)
            os.close(new_fd)

    def make_link(self, path: str, target: str) -> None:
        """Create a symbolic link to `target` at `path`, which contains no link; OSError."""
        directory, _, name = path.rpartition("/")
        with self._made(directory) as fd:
            os.symlink(target, name, dir_fd=fd)
            above = os.fstat(fd)
            if (above.st_uid, above.st_gid) != (os.geteuid(), os.getegid()):
                os.chown(name, above.st_uid, above.st_gid, dir_fd=fd, follow_symlinks=False)

    def is_hosts(self) -> bool:
        """Whether the root is the host's own, whatever gpushared's mount namespace is."""
        root, host = os.fstat(self.fd), Path("/").stat()
        return (root.st_dev, root.st_ino) == (host.st_dev, host.st_ino)

    @contextmanager
    def _made(self, path: str) -> Iterator[int]:
        """Open the directory at `path`, and create what is missing of it on the root's mount."""
        fd = self._open_made(path.strip("/") or ".")
        try:
            yield fd
        finally:
            os.close(fd)

    def _open_made(self, path: str) -> int:
        resolve = _BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS
        flags = os.O_PATH | os.O_DIRECTORY
        try:
            return openat2(self.fd, path, flags, resolve)
        except FileNotFoundError:
            above, _, name = path.rpartition("/")
            directory = self._open_made(above or ".")
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
            new_fd = openat2(directory, name, os.O_RDONLY | os.O_DIRECTORY, resolve)
            _own_as_above(directory, new_fd, 0o755)
        finally:
            os.close(directory)
        return new_fd

    def resolve(self, path: str) -> str:
        """Return where a mount at `path` really lands: an absolute path without links.

        Parts that do not exist stay as they are: the runtime makes them. A dangling link leads to
        the name that it points to (crun fails on the link itself). OSError: ELOOP after 40 links,
        EILSEQ where the path is no UTF-8 and so cannot be written in a spec.
        """
        todo = parts_of(path)
        done: list[str] = []
        fds = [os.dup(self.fd)]
        links = 0
        try:
            while todo:
                name = todo.pop()
                if name == "..":
                    if done:
                        done.pop()
                    del_from = len(done) + 1
                    for fd in fds[del_from:]:
                        os.close(fd)
                    del fds[del_from:]
                    continue
                target = _step(fds, len(done), name)
                if target is None:
                    done.append(name)
                    continue
                links += 1
                if links > MOST_LINKS:
                    raise RootfsError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if target.startswith("/"):
                    done.clear()
                    for fd in fds[1:]:
                        os.close(fd)
                    del fds[1:]
                todo += parts_of(target)
        finally:
            for fd in fds:
                os.close(fd)
        return spoken("/" + "/".join(done))


def _own_as_above(directory_fd: int, fd: int, mode: int) -> None:
    """Give the new file at `fd` the owner of its directory, and `mode` whatever the umask is."""
    above = os.fstat(directory_fd)
    if (above.st_uid, above.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(fd, above.st_uid, above.st_gid)
    os.fchmod(fd, mode)


def spoken(path: str) -> str:
    """Return `path`; RootfsError EILSEQ where it cannot be written in a spec."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise RootfsError(errno.EILSEQ, "a link leads to a name that is no UTF-8", path) from error
    return path


def parts_of(path: str) -> list[str]:
    """Return the names of `path`, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _step(fds: list[int], depth: int, name: str) -> str | None:
    """Look at `name` in the directory `depth` levels down: return where a link leads, else None.

    `fds` are the directories walked so far; it is shorter than the walk where nothing exists.
    """
    if len(fds) != depth + 1:
        return None
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fds[-1])
    except OSError:
        return None
    mode = os.fstat(fd).st_mode
    if stat.S_ISLNK(mode):
        try:
            return os.readlink("", dir_fd=fd)
        finally:
            os.close(fd)
    if stat.S_ISDIR(mode):
        fds.append(fd)
    else:
        os.close(fd)
    return None


def openat2(directory_fd: int, path: str, flags: int, resolve: int) -> int:
    """Return a descriptor of `path`, with RESOLVE_* in `resolve`; OSError, OldKernelError."""
    fd = _tried(directory_fd, path, flags | os.O_CLOEXEC, resolve)
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd), path)
    return fd


def _tried(directory_fd: int, path: str, flags: int, resolve: int) -> int:
    """Return a descriptor, or the error's number below zero; OldKernelError."""
    how = _how(flags, resolve)
    name = os.fsencode(path)
    number = 0
    for _ in range(_RACES):
        fd = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(directory_fd), name, how, _SIZE
        )
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            raise OldKernelError("openat2(2) is missing: gpushare needs Linux 5.6 or newer")
        if number != errno.EAGAIN:
            break
    return -number


@functools.lru_cache(maxsize=64)
def _how(flags: int, resolve: int) -> Any:
    """Return a reference to the call's argument, which the kernel only reads."""
    return ctypes.byref(_OpenHow(flags, 0, resolve))


def names_in(directory: int) -> list[str]:
    """Return the names in the directory open at `directory`, sorted; empty where it is too large.

    OSError where it cannot be read.
    """
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        names: list[str] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > _MOST_NAMES:
                    return []
    finally:
        os.close(fd)
    return sorted(names)


def stamp_of(directory: int) -> tuple[int, ...]:
    """Return what the directory open at `directory` and its names are known by."""
    return _stamp(os.fstat(directory))


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    # Not the device: each container has an overlay of its own, and a directory of a lower layer
    # keeps its inode in all of them.
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def read_regular(path_fd: int, path: str, limit: int, *, whole: bool = True) -> bytes:
    """Return at most `limit` bytes of the file at `path`, which `path_fd` names (O_PATH).

    RootfsError where it is no regular file, or has more bytes and the `whole` of it is wanted.
    """
    # Looked at before it is opened: opening a device or a pipe already does something.
    if not stat.S_ISREG(os.fstat(path_fd).st_mode):
        raise RootfsError(errno.EINVAL, "not a regular file", path)
    # The descriptor names the file that was looked at; /proc opens that file, by no name again.
    fd = os.open(f"/proc/self/fd/{path_fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not whole:
            return os.pread(fd, limit, 0)
        data = read_at_most(fd, limit + 1)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise RootfsError(errno.EFBIG, f"over {limit} bytes", path)
    return data


def _replace(directory_fd: int, name: str, data: bytes, mode: int) -> None:
    owner = None
    try:
        before = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        if stat.S_ISREG(before.st_mode):
            mode, owner = stat.S_IMODE(before.st_mode), (before.st_uid, before.st_gid)
    except FileNotFoundError:
        above = os.fstat(directory_fd)
        owner = above.st_uid, above.st_gid
    replace_file(name, data, mode & 0o777, owner=owner, dir_fd=directory_fd)
