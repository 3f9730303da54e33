# SPDX-License-Identifier: Apache-2.0
"""The layers of an image as one tree, in a mount that is attached nowhere.

Only the descriptor leads to it, and with that it goes; nothing is left to unmount. Source:
fsopen(2), fsconfig(2), fsmount(2); Linux, filesystems/overlayfs.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# The same on every architecture (asm-generic/unistd.h).
_SYS_FSOPEN: Final = 430
_SYS_FSCONFIG: Final = 431
_SYS_FSMOUNT: Final = 432
_CLOEXEC: Final = 1
_SET_STRING: Final = 1
_CREATE: Final = 6
_READ_ONLY: Final = 0x1 | 0x2 | 0x4 | 0x8  # MOUNT_ATTR_RDONLY, NOSUID, NODEV, NOEXEC
_LONGEST_STRING: Final = 255

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@contextmanager
def opened(layers: Sequence[Path]) -> Iterator[int]:
    """Open the tree that `layers`, the topmost first, make; OSError where that cannot be."""
    if not layers:
        raise OSError(errno.ENOENT, "the engine tells no layers")
    if len(layers) == 1:
        fd = os.open(layers[0], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        fd = _mounted(layers)
    try:
        yield fd
    finally:
        os.close(fd)


def _mounted(layers: Sequence[Path]) -> int:
    context = _call(_SYS_FSOPEN, ctypes.c_char_p(b"overlay"), ctypes.c_uint(_CLOEXEC))
    try:
        try:
            for layer in layers:
                _set(context, b"lowerdir+", os.fsencode(layer))
        except OSError as error:
            # Before Linux 6.7 all of them are one string.
            together = b":".join(map(os.fsencode, layers))
            if error.errno != errno.EINVAL or len(together) > _LONGEST_STRING:
                raise
            _set(context, b"lowerdir", together)
        _call(
            _SYS_FSCONFIG,
            ctypes.c_int(context),
            ctypes.c_uint(_CREATE),
            None,
            None,
            ctypes.c_int(0),
        )
        return _call(
            _SYS_FSMOUNT, ctypes.c_int(context), ctypes.c_uint(_CLOEXEC), ctypes.c_uint(_READ_ONLY)
        )
    finally:
        os.close(context)


def _set(context: int, key: bytes, value: bytes) -> None:
    _call(
        _SYS_FSCONFIG,
        ctypes.c_int(context),
        ctypes.c_uint(_SET_STRING),
        ctypes.c_char_p(key),
        ctypes.c_char_p(value),
        ctypes.c_int(0),
    )


def _call(number: int, *arguments: object) -> int:
    done = _libc.syscall(ctypes.c_long(number), *arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "overlay")
    return int(done)
