# SPDX-License-Identifier: Apache-2.0
"""Two words of one dialect for the same key: which of them holds, or what both come to."""

from __future__ import annotations

from fractions import Fraction
from typing import Final, TypeAlias

from gpushare.quota.dialects.row import Word

#: An amount, and the word that says it.
Held: TypeAlias = "tuple[Fraction | str, Word]"

_LATER: Final = frozenset({"priority"})
_UUIDS: Final = ("GPU-", "MIG-")


def settled(key: str, before: Held, now: Held) -> tuple[Held, Word | None]:
    """Return what holds of two that differ, and the word that does not; None where both do.

    The smaller amount, of a priority the later. All that is denied; of what is allowed the cards
    by UUID, which are fewer than those of a model. Else what asks, rather than what says how.
    """
    if key == "deny":
        names = [*str(before[0]).split(","), *str(now[0]).split(",")]
        return (",".join(dict.fromkeys(names)), before[1]), None
    return (before, now[1]) if _holds(key, before, now) else (now, before[1])


def _holds(key: str, before: Held, now: Held) -> bool:
    """Whether the first of the two does."""
    if isinstance(before[0], Fraction) and isinstance(now[0], Fraction):
        return (before[0] < now[0]) != (key in _LATER)
    if key == "allow":
        return _by_uuid(before) or not _by_uuid(now)
    return before[1].row.use == "asks" or now[1].row.use != "asks"


def _by_uuid(held: Held) -> bool:
    return all(name.startswith(_UUIDS) for name in str(held[0]).split(","))
