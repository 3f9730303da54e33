# SPDX-License-Identifier: Apache-2.0
"""What the driver has beside a tenant's account."""

from __future__ import annotations

from collections import deque
from typing import Final

from gpushare.daemon.pages.account import Account

_LOOKS: Final = 4


class Overhead:
    """What the driver has beside a tenant's account on one card: the least of the last looks.

    `published_bytes` is what the tenant was told last, by an earlier daemon: until there are enough
    looks it stands, for otherwise each restart would lend everybody's contexts to their buffers.
    """

    def __init__(self, published_bytes: int = 0) -> None:
        self._published_bytes = published_bytes
        self._looks: deque[int] = deque(maxlen=_LOOKS)

    def observe(self, driver_bytes: int, before: Account, after: Account) -> int:
        """Return the overhead in bytes after one more look."""
        account = max(before.told_bytes, after.told_bytes)
        self._looks.append(max(0, driver_bytes - account))
        # Until there are enough looks one of them may be the race itself.
        known = () if len(self._looks) == _LOOKS else (self._published_bytes,)
        return min(*self._looks, *known)

    @property
    def is_settled(self) -> bool:
        """Whether all of the last looks agree."""
        return len(self._looks) == _LOOKS and min(self._looks) == max(self._looks)
