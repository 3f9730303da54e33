# SPDX-License-Identifier: Apache-2.0
"""What the file says of single cards, and of all cards of a model: `cards`.

A section is for the card with that UUID, or that index, or for every card whose model has those
words; of a key that several sections say the nearest holds, in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.settings.document import Document, Place, at, key_of

SECTION: Final = "cards"
ANY: Final = "any"


@dataclass(frozen=True)
class CardRule:
    """Which requests a card takes, and how many shares of it there may be.

    `mode` is "shared" (no whole card), "exclusive" (no share) or "any". `where` has for each key of
    the file where the file says it.
    """

    mode: str = ANY
    max_shares: int = 16
    where: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class CardSection:
    """One section of `cards`: its name, its values and where each is."""

    name: str
    values: Mapping[str, Any]
    where: Mapping[str, str]

    def nearness(self, index: int, uuid: str, model: str) -> int:
        """Return 3 for the UUID, 2 for the index, 1 for the model, 0 for another card."""
        if self.name == uuid:
            return 3
        if self.name.isdigit():
            return 2 if self.name == str(index) else 0
        return 1 if self.name.casefold() in model.casefold() else 0


def card_sections(document: Document) -> tuple[CardSection, ...]:
    """Return the sections of a document that has been checked, in its order."""
    return tuple(_section(document, name) for name in document.section((SECTION,)))


def _section(document: Document, name: str) -> CardSection:
    here: Place = (SECTION, name)
    values = {key: value for key, value in document.section(here).items() if value is not None}
    where = {key: _where(document, (*here, key)) for key in values}
    return CardSection(name, values, where)


def _where(document: Document, place: Place) -> str:
    return f"{key_of(place)}, {at(document.file, document.line(place))}"


def rule_of(
    sections: tuple[CardSection, ...], index: int, uuid: str, model: str, max_shares: int
) -> CardRule:
    """Return what holds for a card; `max_shares` is the node's, where no section says another."""
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    found = [(section.nearness(index, uuid, model), section) for section in sections]
    for near, section in sorted(found, key=lambda one: -one[0]):
        if near:
            values = {**section.values, **values}
            where = {**section.where, **where}
    return CardRule(**{"max_shares": max_shares, **values}, where=where)
