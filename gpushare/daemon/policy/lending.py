# SPDX-License-Identifier: Apache-2.0
"""How much of a card's memory each tenant may use: its promise, and what it is lent above that.

Lent is only what nobody was promised and nobody uses. It cannot be taken back, so what one borrower
has got hold of, the others wait for without an end; hence it is shared by levels, as water fills
vessels of different depth: who borrows least is lent to first, and two that want more than there is
end at the same level. A borrower's part is kept for it while it does not use it. The one that is
above the level (it came first, or there was more then) keeps what it has and gets nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

#: What is lent changes in steps of this: cards give memory in units of it, and a limit that follows
#: every byte would be written at every look.
STEP_BYTES: Final = 2 << 20


@dataclass(frozen=True)
class Part:
    """A tenant's part of one card, in bytes; `most_bytes` is never less than `memory_bytes`."""

    memory_bytes: int  # promised
    most_bytes: int  # asked: what it may have with what it is lent
    used_bytes: int

    @property
    def wanted_bytes(self) -> int:
        """What it may be lent at most."""
        return self.most_bytes - self.memory_bytes

    @property
    def borrowed_bytes(self) -> int:
        """What it uses of what it was lent."""
        return max(0, min(self.used_bytes, self.most_bytes) - self.memory_bytes)

    @property
    def beyond_bytes(self) -> int:
        """What it uses above all that it may have: its quota was larger once."""
        return max(0, self.used_bytes - self.most_bytes)


def decide(capacity_bytes: int, parts: Sequence[Part]) -> tuple[int, ...]:
    """Return what each of `parts` may use of a card that has `capacity_bytes` for tenants.

    Never less than is promised, nor more than is asked. What may be used and what is used are
    together no more than the capacity, unless promises and use alone are more: then nobody may use
    more above its promise than it does, and the highest borrowers less.
    """
    spare = capacity_bytes - sum(part.memory_bytes + part.beyond_bytes for part in parts)
    borrowed = [part.borrowed_bytes for part in parts]
    if sum(borrowed) > spare:
        ranges = [(0, most) for most in borrowed]
    else:
        ranges = [(part.borrowed_bytes, part.wanted_bytes) for part in parts]
    level = _level(max(0, spare), ranges)
    return tuple(
        part.memory_bytes + _within(level, low, high)
        for part, (low, high) in zip(parts, ranges, strict=True)
    )


def _level(spare: int, ranges: Sequence[tuple[int, int]]) -> int:
    """Return the highest level, in whole steps, at which `ranges` together take at most `spare`."""

    def fits(steps: int) -> bool:
        return sum(_within(steps * STEP_BYTES, low, high) for low, high in ranges) <= spare

    highest = max((high for _, high in ranges), default=0)
    return _last(fits, -(-highest // STEP_BYTES)) * STEP_BYTES


def _last(fits: Callable[[int], bool], most: int) -> int:
    """Return the last number of 0 to `most` that fits; those that do come first, 0 always does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _within(level: int, low: int, high: int) -> int:
    return max(low, min(level, high))
