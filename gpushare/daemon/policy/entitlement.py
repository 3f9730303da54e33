# SPDX-License-Identifier: Apache-2.0
"""What a tenant may have of a card: its limit, and what it took while that was higher.

A limit falls when what was lent is lent to another, and when an operator shrinks a quota. Nothing
takes back what a program has by then: it keeps it, gets nothing more, and is not blamed for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: What was asked for when the limit fell may still be on its way; and a look may miss a process.
GRACE_NS: Final = 5 * 10**9


@dataclass(frozen=True)
class Entitlement:
    """`may_bytes` is the figure; the rest is the most that was used in the last two periods."""

    may_bytes: int
    since_ns: int  # of this period
    most_bytes: int = 0
    most_before_bytes: int = 0
    below_ns: int | None = None  # since when the limit is below `may_bytes`


def entitled(
    now_ns: int, limit_bytes: int, used_bytes: int, before: Entitlement | None, ever_bytes: int
) -> Entitlement:
    """Return what a tenant may have whose limit is `limit_bytes` now.

    `used_bytes` is the most that it may have at this look, `ever_bytes` the most that it was ever
    allowed: what it has of that when it is seen first (`before` is None) it may have taken rightly.
    """
    if before is None:
        before = Entitlement(max(limit_bytes, ever_bytes), now_ns)
    since_ns, most, most_before = before.since_ns, before.most_bytes, before.most_before_bytes
    if now_ns - since_ns >= GRACE_NS:
        since_ns, most, most_before = now_ns, 0, most
    most = max(most, used_bytes)
    if limit_bytes >= before.may_bytes:
        return Entitlement(limit_bytes, since_ns, most, most_before)
    below_ns = now_ns if before.below_ns is None else before.below_ns
    may_bytes = before.may_bytes
    if now_ns - below_ns >= GRACE_NS:
        may_bytes = max(limit_bytes, min(may_bytes, max(most, most_before)))
    return Entitlement(
        may_bytes,
        since_ns,
        most,
        most_before,
        None if may_bytes == limit_bytes else below_ns,
    )
