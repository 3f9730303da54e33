# SPDX-License-Identifier: Apache-2.0
"""What a tenant's processes say that they hold: claims, and their sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushare import abi


@dataclass(frozen=True)
class Held:
    """What one process says that it holds on one card, or all processes together.

    `kinds` has bytes by `abi.KIND_...`; `held_bytes` is all of them and what is pending.
    """

    held_bytes: int = 0
    kinds: tuple[int, ...] = (0,) * abi.KINDS
    contexts: int = 0
    pool_kept_bytes: int = 0
    exported_bytes: int = 0
    imported_bytes: int = 0


@dataclass(frozen=True)
class Claim:
    """What one process says of itself: `held` by card number."""

    number: int
    pid: int  # in its own pid namespace
    starttime: int
    denied: int
    denied_bytes: int  # what the last refused allocation asked for
    held: tuple[Held, ...]


@dataclass(frozen=True)
class Account(Held):
    """What a tenant's processes say that they hold of one card; `imported_bytes` is the most."""

    @property
    def orphaned_bytes(self) -> int:
        """What outlived the process that made it: somebody maps more than all answer for."""
        return max(0, self.imported_bytes - self.exported_bytes)

    @property
    def told_bytes(self) -> int:
        """What the driver should have of it: all but managed memory, which it counts for nobody."""
        return max(0, self.held_bytes - self.kinds[abi.KIND_MANAGED]) + self.orphaned_bytes

    def used_bytes(self, overhead_bytes: int) -> int:
        """Return all that counts against the quota, as gpushare_abi.h has it."""
        return self.held_bytes + overhead_bytes + self.orphaned_bytes


def accounts(claims: Iterable[Claim], cards: int) -> tuple[Account, ...]:
    """Return the sums of `claims` for each of `cards`."""
    claims = tuple(claims)
    return tuple(_account([claim.held[number] for claim in claims]) for number in range(cards))


def _account(held: Sequence[Held]) -> Account:
    return Account(
        held_bytes=sum(one.held_bytes for one in held),
        kinds=tuple(sum(one.kinds[kind] for one in held) for kind in range(abi.KINDS)),
        contexts=sum(one.contexts for one in held),
        pool_kept_bytes=sum(one.pool_kept_bytes for one in held),
        exported_bytes=sum(one.exported_bytes for one in held),
        imported_bytes=max((one.imported_bytes for one in held), default=0),
    )
