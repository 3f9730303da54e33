# SPDX-License-Identifier: Apache-2.0
"""Which policy holds for a tenant on a card, and how much of the card it promises."""

from __future__ import annotations

from typing import Final

FIXED: Final = "fixed-share"
_GUARANTEED: Final = frozenset({FIXED, "burst-share"})


def policy_on(own: str, cores: int, card_policy: str, *, is_set: bool) -> str:
    """Return the policy that holds for a tenant whose own is `own` on a card of `card_policy`.

    The operator's word for the card ("" where there is none) stands above what a container asks,
    and his word for the container (`is_set`) above that. What sets cores aside is nothing for a
    tenant that asks for none: it keeps its own.
    """
    if is_set or not card_policy or (card_policy in _GUARANTEED and not cores):
        return own
    return card_policy


def reserved_cores(policy: str, cores: int) -> int:
    """Return the percent of a card that `policy` sets aside for a tenant that asks for `cores`.

    best-effort and native-burst-share guarantee none.
    """
    return cores if policy in _GUARANTEED else 0
