# SPDX-License-Identifier: Apache-2.0
"""A tenant's bell: a FIFO beside its pages, by which its processes call the scheduler.

It outlives whoever reads it. A process that rings it opens it for reading too, so that it never
waits for a reader, and is never killed for the lack of one (fifo(7), SIGPIPE).
"""

from __future__ import annotations

import os

from gpushare import abi
from gpushare.daemon.pages.status import disown


def make(directory: int, *, owner: int | None = None) -> None:
    """Make the bell; anybody who sees it may ring it, or only `owner` where one is given."""
    os.mkfifo(abi.BELL_NAME, 0o600, dir_fd=directory)
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(abi.BELL_NAME, flags, dir_fd=directory)
    try:
        if owner is None:
            os.fchmod(fd, 0o666)
            disown(fd)
        else:
            os.fchown(fd, owner, -1)
    finally:
        os.close(fd)
