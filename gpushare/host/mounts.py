# SPDX-License-Identifier: Apache-2.0
"""mount(2), umount2(2), unshare(2) and setns(2). No other module calls them.

Python has os.unshare and os.setns from 3.12 on, and no mount(2), hence ctypes. Every function
raises OSError with the path that failed. A path may be a file descriptor, which is accessed as
/proc/self/fd/N: the mount then uses the opened file, even if it has been renamed or replaced.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final, TypeAlias

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


def _check(done: int, what: MountPath) -> None:
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), _path(what))
