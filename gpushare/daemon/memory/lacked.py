# SPDX-License-Identifier: Apache-2.0
"""What tenants could not have of a card though it was promised; as long as the daemon runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Lack:
    """What one tenant lacked of one card the last time; `seen` is seconds since the epoch."""

    bytes: int
    seen: float
    times: int = 1


class Lacked:
    """By tenant and card. The decide thread notes; any may ask."""

    def __init__(self) -> None:
        self._by_place: Mapping[tuple[str, str], Lack] = MappingProxyType({})

    def of(self, key: str, uuid: str) -> Lack | None:
        """Return what tenant `key` lacked of a card, None where it had all that it asked for."""
        return self._by_place.get((key, uuid))

    def note(self, key: str, uuid: str, size: int) -> None:
        """Count one more lack, of `size` bytes."""
        before = self.of(key, uuid)
        lack = Lack(size, time.time(), 1 if before is None else before.times + 1)
        self._by_place = MappingProxyType({**self._by_place, (key, uuid): lack})

    def forget(self, key: str) -> None:
        """Tenant `key` has ended."""
        kept = {place: lack for place, lack in self._by_place.items() if place[0] != key}
        self._by_place = MappingProxyType(kept)
