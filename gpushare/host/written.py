# SPDX-License-Identifier: Apache-2.0
"""Whether anybody has written a file, also what it said already: inotify(7)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_IN_MODIFY: Final = 0x2
_READ_BYTES: Final = 4096


class Written:
    """Watches `file` until it is closed; OSError where it cannot be."""

    def __init__(self, file: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error(file)
        if libc.inotify_add_watch(self._fd, os.fsencode(file), _IN_MODIFY) < 0:
            error = _error(file)
            self.close()
            raise error

    def again(self) -> bool:
        """Whether it was written, or removed, since this was asked last."""
        found = False
        try:
            while os.read(self._fd, _READ_BYTES):
                found = True
        except BlockingIOError:
            pass
        return found

    def close(self) -> None:
        """Watch no more."""
        os.close(self._fd)


def _error(file: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(file))
