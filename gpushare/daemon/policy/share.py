# SPDX-License-Identifier: Apache-2.0
"""What each tenant of a card asks of its compute, and what it is to get while all of them want it.

compute.py makes the second of the first; schedule.py tells the scheduler, which knows neither
policies nor weights.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """What one tenant asks of one card's compute, by the keys of a quota (gpushare/quota)."""

    key: str
    policy: str
    cores: int  # percent of the card, 1..100; 0: none asked
    weight: int  # 0: none asked
    class_: str  # online | offline
    priority: int
    policy_is_set: bool = False  # by the operator, for this tenant: it stands above the card's


@dataclass(frozen=True)
class Share:
    """A tenant's part of one card, as scheduler/card.h has it.

    `permille` (1..1000) is what it gets while everybody wants more than theirs; `capped`: and never
    more. `online`: it never waits, and while it works the others do; it is not capped then.
    `priority` is of those that are not online: 0 comes first, strictly. A claim's begins at 1 here.
    """

    permille: int
    capped: bool
    online: bool
    priority: int
