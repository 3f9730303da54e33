# SPDX-License-Identifier: Apache-2.0
"""Looks that are left out, because they would find what the last ones did.

Most tenants do nothing most of the time. While the driver says of all cards what it said before,
and that they do nothing, only it is asked, and less often; the accounts of all tenants are read,
and everybody is judged anew, every `FULL_SECONDS`. Whatever is new in the driver's answer, or in
who is there, is looked at in full at once and as often as ever.

Nobody rests beside a tenant of whom the driver says more than it was promised, or of whom there is
anything to find: what the audit concludes from many looks it must have.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpushare.daemon.cards.card import Sample
from gpushare.daemon.store.ledger import Entry

if TYPE_CHECKING:
    from gpushare.daemon.audit.view import Look
    from gpushare.daemon.node import Node
    from gpushare.daemon.tenants import Pages

FULL_SECONDS: Final = 10.0  # as often as everything else is reconciled
SETTLED_LOOKS: Final = 8  # in full, that found the same
SLOWER: Final = 2  # times the usual period


class Rest:
    """Tells whether a look may be left out. The truth thread's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._looks = 0  # in a row that found the same
        self._sample: Sample | None = None
        self._entries: Mapping[str, Entry] | None = None
        self._pages: Mapping[str, Pages] | None = None
        self._full = 0.0

    @property
    def slower(self) -> int:
        """How many times the usual period the next look may wait."""
        return SLOWER if self._looks >= SETTLED_LOOKS else 1

    def look(self) -> bool:
        """Ask the driver alone; True where that is all that this look needs."""
        node = self._node
        if self._looks < SETTLED_LOOKS or time.monotonic() - self._full >= FULL_SECONDS:
            return False
        if node.ledger.entries is not self._entries or node.tenants.pages is not self._pages:
            return False
        sample = None if node.driver is None else node.driver.truth.peek()
        return sample is not None and _undated(sample) == self._sample

    def note(self) -> None:
        """Note what a look in full has found."""
        node = self._node
        look = None if node.driver is None else node.driver.truth.last
        self._full = time.monotonic()
        if look is None or not self._is_calm(look):
            self._looks, self._sample = 0, None
            return
        sample = _undated(look.sample)
        same = (
            sample == self._sample
            and look.entries is self._entries
            and node.tenants.pages is self._pages
        )
        self._looks = self._looks + 1 if same else 0
        self._sample, self._entries, self._pages = sample, look.entries, node.tenants.pages

    def _is_calm(self, look: Look) -> bool:
        """Whether no card does anything, and nobody has more than it was promised."""
        node, sample = self._node, look.sample
        audit = node.audit
        if (
            node.driver is None
            or audit.view
            or audit.strangers.view
            or node.overuse.view
            or sample.xids
        ):
            return False
        if any(sample.utilisation.values()) or any(
            use.utilisation for uses in sample.uses.values() for use in uses
        ):
            return False
        truth = node.driver.truth.view
        return all(
            truth.driver_bytes(entry.key, holding.uuid) <= holding.memory_bytes
            for entry in look.entries.values()
            for holding in entry.holdings
        )


def _undated(sample: Sample) -> Sample:
    """Return `sample` without its moment; an XID that came makes it another."""
    return replace(sample, taken_ns=0)
