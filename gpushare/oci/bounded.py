# SPDX-License-Identifier: Apache-2.0
"""Reading a file of unknown size, and no more of it than is wanted."""

from __future__ import annotations

import os
from typing import Final

_PIECE: Final = 64 << 10


def read_at_most(fd: int, limit: int) -> bytes:
    """Return what is left to read at `fd`, at most `limit` bytes; OSError as read(2).

    A file object would allocate, and the kernel map, `limit` bytes at once for the few that there
    are.
    """
    pieces = []
    while limit and (piece := os.read(fd, min(limit, _PIECE))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)
