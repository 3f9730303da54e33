# SPDX-License-Identifier: Apache-2.0
"""The most memory that each tenant was seen to use, since this daemon looks at it.

A look is every `timing.sample`: what was taken and freed in between is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpushare.daemon.audit.view import View

_Place = tuple[str, str]  # (tenant key, card uuid)


class Peaks:
    """`look` is the truth thread's; any thread may ask."""

    def __init__(self) -> None:
        self._most: Mapping[_Place, int] = MappingProxyType({})

    def of(self, key: str, uuid: str) -> int:
        """Return the most bytes that tenant `key` was seen to use of card `uuid`."""
        return self._most.get((key, uuid), 0)

    def look(self, view: View) -> None:
        """Note what `view` says; who is in it no more is forgotten."""
        used = dict(view.used)
        for key, uses in view.processes.items():
            for uuid in {card for card, _ in uses}:
                used.setdefault((key, uuid), view.driver_bytes(key, uuid))  # a whole card
        self._most = MappingProxyType(
            {place: max(size, self._most.get(place, 0)) for place, size in used.items()}
        )
