# SPDX-License-Identifier: Apache-2.0
"""Cards by what they are: a UUID, or words of a model's name."""

from __future__ import annotations

from gpushare.daemon.cards.card import Card


def matches(name: str, card: Card) -> bool:
    """Whether `name` is this card's UUID or words of its model, in any case: `h200`."""
    return name == card.uuid or name.casefold() in card.model.casefold()
