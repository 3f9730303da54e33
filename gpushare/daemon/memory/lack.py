# SPDX-License-Identifier: Apache-2.0
"""A tenant says that the driver has not got what it was promised; the decide thread's.

Its process keeps what it asked for reserved, and asks the driver again for two seconds. Meanwhile
nothing is lent of that card, and who has more than its part is looked at sooner. A word is believed
as far as the tenant's own page and the driver's last figures bear it out: the tenant is within its
promise with what it asks for, and the card is about full. What it brings about then falls on those
who have more than they may, so a tenant gains nothing by lying.
"""

from __future__ import annotations

from gpushare.daemon.memory import lend
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry


def heard(key: str, number: int, size: int, node: Node) -> bool:
    """Act on tenant `key`'s word that card `number` has no `size` bytes; True where believed."""
    entry = node.ledger.entries.get(key)
    if entry is None or not entry.shared or not 0 <= number < len(entry.holdings):
        return False
    if not _is_within(entry, number, size, node):
        return False
    uuid = entry.holdings[number].uuid
    if not _is_full(uuid, size, node):
        node.audit.hurry.set()  # it says so again, and the card may have been filled just now
        return False
    if not node.audit.lacks(key, uuid, size):
        return False
    lend.withhold(uuid, node)
    node.lacked.note(key, uuid, size)
    return True


def _is_within(entry: Entry, number: int, size: int, node: Node) -> bool:
    """Whether the tenant has no more than it was promised, by its page with `size` reserved."""
    pages = node.tenants.pages.get(entry.key)
    if pages is None:
        return False
    used, _, _ = pages.use(number)
    return 0 < size <= used <= entry.holdings[number].memory_bytes


def _is_full(uuid: str, size: int, node: Node) -> bool:
    """Whether the driver's last figures have little more than `size` left of a card."""
    card = None if node.driver is None else node.driver.card(uuid)
    look = None if node.driver is None else node.driver.truth.last
    if card is None or look is None or uuid not in look.sample.uses:
        return False
    return card.memory_bytes - look.sample.taken_bytes(uuid) < size + card.little_bytes
