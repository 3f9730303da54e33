# SPDX-License-Identifier: Apache-2.0
"""What a card has in use that the driver tells of no process.

Managed memory, what outlives its process, and the driver's own. Nobody is blamed for it: it is
shown, and told where it is much for long, for it is missing to whoever was promised it. What the
tenants claim as managed is known, and not in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpushare import abi
from gpushare.daemon.audit.view import Look
from gpushare.daemon.log import log

_LOOKS: Final = 4  # the least of them, as with overhead: one look may race
_LONG_NS: Final = 10 * 10**9
_MUCH_BYTES: Final = 1 << 30  # or a twentieth of the card


class Unattributed:
    """Bytes by the card's uuid, in `view`; the truth thread's."""

    def __init__(self) -> None:
        self.view: Mapping[str, int] = MappingProxyType({})
        self._looks: dict[str, deque[int]] = {}
        self._much_since_ns: dict[str, int | None] = {}
        self._told: set[str] = set()

    def look(self, now_ns: int, look: Look, memory: Mapping[str, int]) -> None:
        """Take a look in; `memory` is what each card has, by uuid."""
        found = dict(self.view)
        for uuid, used in look.sample.used.items():
            uses = look.sample.uses.get(uuid)
            if uses is None or any(use.bytes is None for use in uses):
                continue
            known = sum(use.bytes or 0 for use in uses) + _managed(look, uuid)
            looks = self._looks.setdefault(uuid, deque(maxlen=_LOOKS))
            looks.append(max(0, used - known))
            found[uuid] = min(looks)
            self._note(now_ns, uuid, found[uuid], memory.get(uuid, 0))
        self.view = MappingProxyType(found)

    def _note(self, now_ns: int, uuid: str, size: int, memory_bytes: int) -> None:
        """Tell once of much that lasts, and again after it was less."""
        if size <= max(_MUCH_BYTES, memory_bytes // 20):
            self._much_since_ns[uuid] = None
            self._told.discard(uuid)
            return
        since = self._much_since_ns.get(uuid)
        if since is None:
            self._much_since_ns[uuid] = now_ns
        elif now_ns - since >= _LONG_NS and uuid not in self._told:
            self._told.add(uuid)
            log("memory-unattributed", "warning", card=uuid, used_bytes=size)


def _managed(look: Look, uuid: str) -> int:
    """Return what the tenants of a card claim of managed memory, some of which is on it."""
    return sum(
        claim.held[number].kinds[abi.KIND_MANAGED]
        for key, claims in look.after.items()
        if key in look.entries
        for number, holding in enumerate(look.entries[key].holdings)
        if holding.uuid == uuid
        for claim in claims
        if number < len(claim.held)
    )
