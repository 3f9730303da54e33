# SPDX-License-Identifier: Apache-2.0
"""Containers of several processes, and of several cards."""

from __future__ import annotations

from .tenants import SharedCardStack

HALF = {"cores": "50", "policy": "burst-share"}


def test_three_processes_get_no_more_than_one(place: SharedCardStack) -> None:
    one, three = place.start(HALF), place.start(HALF, processes=3)
    place.assert_parts({one: 48, three: 48})


def test_cards_are_independent_and_a_tenant_of_both_has_its_share_of_both(
    place: SharedCardStack,
) -> None:
    """A tenant with steps on both cards at once waits for the slower: its windows are aligned."""
    both = place.start({**HALF, "count": "2"}, work={"cards": 2})
    beside = [place.start({**HALF, "devices": str(card)}) for card in (0, 1)]
    for card, other in enumerate(beside):
        place.assert_parts({both: 48, other: 48}, band=10, card=card)
    beside[0].remove()
    both.remove()
    place.assert_parts({beside[1]: 95}, card=1)
