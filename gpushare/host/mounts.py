# SPDX-License-Identifier: Apache-2.0
"""mount(2), umount2(2), unshare(2) and setns(2): the only place that calls them.

Python has os.unshare and os.setns from 3.12 on and mount(2) in no version, hence ctypes. Every
function raises OSError with the path that failed. A path may be a file descriptor: it is then
reached as /proc/self/fd/N, so that what was opened is what gets mounted, whatever its name has
become since.
"""

from __future__ import annotations

import ctypes
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

Place: TypeAlias = str | Path | int

# statvfs(3) reports these of a mount; a read-only remount must name them again or it drops them
# (and is refused with EPERM where they are locked, mount_namespaces(7)).
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
    source: Place, target: Place, filesystem: str = "", flags: int = 0, data: str = ""
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


def bind(source: Place, target: Place, *, read_only: bool = False, recursive: bool = False) -> None:
    """Make `source` (a file or a folder) appear at `target`, which is there already."""
    mount(source, target, flags=MS_BIND | (MS_REC if recursive else 0))
    if read_only:
        # The first call ignores every flag but MS_REC (mount(2)): read-only takes a second one. A
        # descriptor of the target still names what is beneath the new mount, so go by its name.
        where = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else target
        kept = os.statvfs(where).f_flag
        flags = sum(mount_flag for stat_flag, mount_flag in _KEPT.items() if kept & stat_flag)
        mount("none", where, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | flags)


def tmpfs(target: Place, *, flags: int = MS_NOSUID | MS_NODEV, data: str = "mode=755") -> None:
    """Mount an empty tmpfs at `target`."""
    mount("tmpfs", target, "tmpfs", flags, data)


def unmount(target: Place, flags: int = UMOUNT_NOFOLLOW) -> None:
    """Take away the topmost mount at `target`; `flags` are MNT_* and UMOUNT_*."""
    _check(_libc.umount2(os.fsencode(_path(target)), flags), target)


def unshare(flags: int) -> None:
    """Give this thread its own copy of what `flags` (CLONE_*) name."""
    _check(_libc.unshare(flags), "unshare")


def enter(namespace: int, kind: int = CLONE_NEWNS) -> None:
    """Move this thread into the namespace open at fd `namespace`, which must be of CLONE_* `kind`.

    A mount namespace can be entered only by a thread that shares its root and cwd with no other:
    unshare(CLONE_FS) first (setns(2)).
    """
    _check(_libc.setns(namespace, kind), "setns")


def _path(place: Place) -> str:
    return f"/proc/self/fd/{place}" if isinstance(place, int) else str(place)


def _check(done: int, what: Place) -> None:
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), _path(what))
