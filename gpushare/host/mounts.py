# SPDX-License-Identifier: Apache-2.0
"""mount(2), its successors, umount2(2), unshare(2) and setns(2). No other module calls them.

Python has os.unshare and os.setns from 3.12 on, and no mount(2), hence ctypes. Every function
raises OSError with the path that failed. A path may be a file descriptor, which is accessed as
/proc/self/fd/N: the mount then uses the opened file, even if it has been renamed or replaced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from gpushare import abi
from gpushare.errors import UserError
from gpushare.host.driver import files
from gpushare.oci import ldcache
from gpushare.oci.elf import this_platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpushare.protocol import MountRow


MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_NOATIME: Final = 1024
MS_NODIRATIME: Final = 2048
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MS_SLAVE: Final = 1 << 19
MS_RELATIME: Final = 1 << 21

MNT_DETACH: Final = 2
UMOUNT_NOFOLLOW: Final = 8

CLONE_FS: Final = 0x00000200
CLONE_NEWNS: Final = 0x00020000

MountPath: TypeAlias = str | Path | int
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - fixed: where CUDA looks for cuda.shm.*

# Flags that statvfs(3) reports. A read-only remount must repeat them, otherwise it drops them (or
# fails with EPERM if they are locked, mount_namespaces(7)).
_KEPT: Final = {
    os.ST_NOSUID: MS_NOSUID,
    os.ST_NODEV: MS_NODEV,
    os.ST_NOEXEC: MS_NOEXEC,
    os.ST_NOATIME: MS_NOATIME,
    os.ST_NODIRATIME: MS_NODIRATIME,
    os.ST_RELATIME: MS_RELATIME,
}

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.unshare.argtypes = (ctypes.c_int,)
_libc.setns.argtypes = (ctypes.c_int, ctypes.c_int)


def mount(
    source: MountPath, target: MountPath, filesystem: str = "", flags: int = 0, data: str = ""
) -> None:
    """Mount `filesystem` at `target`; `flags` are MS_*, `data` the filesystem's own options."""
    done = _libc.mount(
        os.fsencode(_path(source)),
        os.fsencode(_path(target)),
        filesystem.encode() or None,
        flags,
        data.encode() or None,
    )
    _check(done, target)


def bind(
    source: MountPath,
    target: MountPath,
    *,
    read_only: bool = False,
    recursive: bool = False,
    flags: int = 0,
) -> None:
    """Bind `source` (a file or a folder) at `target`, which must exist.

    A read-only mount also gets `flags`, which are MS_NOSUID, MS_NODEV and MS_NOEXEC.
    """
    mount(source, target, flags=MS_BIND | (MS_REC if recursive else 0))
    if read_only:
        # The first call ignores every flag except MS_REC (mount(2)), so read-only needs a second
        # one. A descriptor of the target still refers to the file below the new mount: use its
        # name.
        where = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else target
        kept = os.statvfs(where).f_flag
        flags |= sum(mount_flag for stat_flag, mount_flag in _KEPT.items() if kept & stat_flag)
        mount("none", where, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | flags)


def tmpfs(target: MountPath, *, flags: int = MS_NOSUID | MS_NODEV, data: str = "mode=755") -> None:
    """Mount an empty tmpfs at `target`."""
    mount("tmpfs", target, "tmpfs", flags, data)


def unmount(target: MountPath, flags: int = UMOUNT_NOFOLLOW) -> None:
    """Unmount the topmost mount at `target`; `flags` are MNT_* and UMOUNT_*."""
    _check(_libc.umount2(os.fsencode(_path(target)), flags), target)


def unmount_all(target: MountPath) -> None:
    """Unmount every mount at `target`, with what is mounted beneath it; none is fine."""
    while True:
        try:
            unmount(target, MNT_DETACH | UMOUNT_NOFOLLOW)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOENT}:
                raise
            return


_OPEN_TREE: Final = 428  # of every architecture; Linux 5.2
_OPEN_TREE_CLONE: Final = 1


def clone(target: MountPath) -> int:
    """Return a descriptor of a copy of the mount at `target`, which can be moved anywhere."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    descriptor: int = _libc.syscall(_OPEN_TREE, -1, os.fsencode(_path(target)), flags)
    _check(descriptor, target)
    return descriptor


def own_shared_memory() -> None:
    """Give this process, of one thread, an empty /dev/shm of its own; OSError.

    For what calls cuInit as root: NVIDIA's driver opens /dev/shm/cuda_injection_path_shm at each,
    whoever has placed it there.
    """
    unshare(CLONE_NEWNS)
    mount("none", "/", flags=MS_REC | MS_SLAVE)
    tmpfs(SHARED_MEMORY, flags=MS_NOSUID | MS_NODEV | MS_NOEXEC, data="mode=700,size=64m")


_OWN: Final = f"""
import ctypes, os, sys
libc, none = ctypes.CDLL(None), b"none"
if not libc.unshare({CLONE_NEWNS}) and not libc.mount(none, b"/", None, {MS_REC | MS_SLAVE}, None):
    libc.mount(none, b"{SHARED_MEMORY}", b"tmpfs", {MS_NOSUID | MS_NODEV | MS_NOEXEC}, b"mode=700")
os.execv(sys.argv[1], sys.argv[1:])
"""
#: Before the words of a program, by its path: it has what `own_shared_memory` gives, where it may.
WITH_OWN_SHARED_MEMORY: Final = (sys.executable, "-I", "-S", "-c", _OWN)


def unshare(flags: int) -> None:
    """Give this thread its own namespaces or attributes, by `flags` (CLONE_*)."""
    _check(_libc.unshare(flags), "unshare")


def enter_namespace(namespace: int, kind: int = CLONE_NEWNS) -> None:
    """Move this thread into the namespace open at fd `namespace`, which must be of CLONE_* `kind`.

    Before entering a mount namespace, call unshare(CLONE_FS): the thread must not share its root
    and working directory with others (setns(2)).
    """
    _check(_libc.setns(namespace, kind), "setns")


def _path(place: MountPath) -> str:
    return f"/proc/self/fd/{place}" if isinstance(place, int) else str(place)


def _check(done: int, subject: MountPath) -> None:
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), _path(subject))


# --- the private mount namespace of a host process started by `gpushare run` ---
#
# It contains the host's files and the same mounts as a container: the interposer libraries over
# every name with which the loader finds the driver, and the driver and the tenant's pages in
# /opt/gpushare. The mounts do not propagate to the host's namespace.

OURS: Final = Path(abi.HOST_DIR)
FILTERS: Final = OURS / "lib"
DRIVER: Final = OURS / "driver"
TENANT: Final = OURS / "tenant"


class NamespaceError(UserError):
    """The tenant's mounts failed on this host."""


def enter_new_namespace(
    rows: Sequence[MountRow], search: str = "", closed: Sequence[str] = ()
) -> None:
    """Move this process into a new mount namespace and create the mounts of `rows` in it.

    `search` is the LD_LIBRARY_PATH of the future process. The device nodes `closed`, as far as they
    exist, cannot be opened there. NamespaceError names the mount that failed; the process must then
    exit.
    """
    try:
        unshare(CLONE_NEWNS)
        # Later mounts on the host propagate here, but not the other way round.
        mount("none", "/", flags=MS_REC | MS_SLAVE)
        for node in filter(os.path.exists, closed):
            bind(node, node, read_only=True, flags=MS_NODEV)
        if not rows:
            return
        _make_room()
        for row in rows:
            _place(Path(row["source"]), Path(row["destination"]), read_only=row["read_only"])
        _cover(filters(rows), search)
    except OSError as error:
        raise NamespaceError(f"{error.filename}: mount failed: {error.strerror}") from error


def filters(rows: Iterable[MountRow]) -> dict[str, Path]:
    """Return the interposer libraries in `rows`: their paths on the host, by SONAME."""
    mounted = [(Path(row["destination"]), Path(row["source"])) for row in rows]
    return {name.name: source for name, source in mounted if name.parent == FILTERS}


def _make_room() -> None:
    """Mount a tmpfs at OURS that contains its other entries, without writing to the host."""
    if OURS.is_dir():
        _cover_folder(OURS, {name.name for name in (FILTERS, DRIVER, TENANT)})
    else:
        _cover_folder(OURS.parent, set())
        OURS.mkdir()


def _cover_folder(folder: Path, without: set[str]) -> None:
    """Mount a tmpfs over `folder` and bind the folder's entries into it, except `without`."""
    covered = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        tmpfs(folder)
        beneath = Path(f"/proc/self/fd/{covered}")
        for entry in set(os.listdir(beneath)) - without:  # noqa: PTH208 - of a folder by its fd
            source, target = beneath / entry, folder / entry
            if source.is_symlink():
                target.symlink_to(source.readlink())
            else:
                _place(source, target, recursive=True)
    finally:
        os.close(covered)


def _place(source: Path, target: Path, *, read_only: bool = False, recursive: bool = False) -> None:
    """Bind `source` at `target`, which is created as a file or a folder if missing."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.mkdir()
        else:
            target.touch()
    bind(source, target, read_only=read_only, recursive=recursive)


def _cover(ours: dict[str, Path], search: str) -> None:
    """Bind each library over every file with its SONAME; if there is none, add it to the cache."""
    nameless: list[tuple[str, str]] = []
    for soname, source in ours.items():
        names = files.library_paths(soname, search=search)
        for name in names:
            bind(source, name, read_only=True)
        if not names:
            nameless.append((soname, str(FILTERS / soname)))
    if nameless:
        _extend_cache(nameless)


def _extend_cache(wanted: list[tuple[str, str]]) -> None:
    """Add `wanted` to the loader's cache, in a copy that is mounted over it."""
    try:
        merged = ldcache.merge(files.CACHE.read_bytes(), wanted, this_platform().cache_flags)
    except ldcache.LoaderCacheError as error:
        raise NamespaceError(f"{files.CACHE}: {error}. Run ldconfig") from error
    copy = OURS / "ld.so.cache"
    copy.write_bytes(merged)
    bind(copy, files.CACHE, read_only=True)
