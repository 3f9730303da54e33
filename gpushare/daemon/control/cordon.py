# SPDX-License-Identifier: Apache-2.0
"""A card that is taken out of service: nothing new is placed on it, who is on it goes on."""

from __future__ import annotations

from gpushare.daemon.cards.card import Card
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.store.overrides import CORDONED


def cordon(card: Card, reason: str, node: Node) -> None:
    """Place nothing new on `card`, until `uncordon`, across restarts and reboots; OSError."""
    if node.card_overrides.of(card.uuid).get(CORDONED) == reason:
        return
    node.card_overrides.set(card.uuid, {CORDONED: reason})
    log("card-cordoned", card=card.uuid, index=card.index, reason=reason or "no reason given")


def uncordon(card: Card, node: Node) -> None:
    """Place on `card` again; OSError. One that is not cordoned is fine."""
    if CORDONED not in node.card_overrides.of(card.uuid):
        return
    node.card_overrides.forget(card.uuid, CORDONED)
    log("card-uncordoned", card=card.uuid, index=card.index)
