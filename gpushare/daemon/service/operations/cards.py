# SPDX-License-Identifier: Apache-2.0
"""What is shown of cards, and what an operator changes of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpushare.daemon.compute import shares
from gpushare.daemon.control.cordon import cordon, uncordon
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import find_card
from gpushare.daemon.service.request import Answer, Operation, Request, answer
from gpushare.daemon.views import rows
from gpushare.quota import Source
from gpushare.quota.keys import KEYS, read

_REASON_MOST: Final = 200


def _cards(_request: Request, node: Node) -> Answer:
    if node.driver is None:
        return answer()
    links, rooms = node.driver.links, node.rooms()
    return (dict(rows.card_row(room, rooms, links)) for room in rooms), {}


def _card_policy(request: Request, node: Node) -> Answer:
    request.root_only()
    card = find_card(request.text("card", 96), node.rooms()).card
    policy = ""
    if "policy" in request.fields:
        policy = str(read("policy", Source("option", "policy"), request.text("policy"), KEYS).value)
    shares.set_policy(card.uuid, policy, node)
    return _card(card.uuid, node)


def _cordon(request: Request, node: Node) -> Answer:
    request.root_only()
    card = find_card(request.text("card", 96), node.rooms()).card
    reason = request.text("reason", _REASON_MOST) if "reason" in request.fields else ""
    cordon(card, reason, node)
    return _card(card.uuid, node)


def _uncordon(request: Request, node: Node) -> Answer:
    request.root_only()
    card = find_card(request.text("card", 96), node.rooms()).card
    uncordon(card, node)
    return _card(card.uuid, node)


def _card(uuid: str, node: Node) -> Answer:
    """Answer with the card as it is now."""
    rooms = node.rooms()
    room = next(room for room in rooms if room.card.uuid == uuid)
    return answer({"card": rows.card_row(room, rooms, node.loaded().links)})


OPERATIONS: Final[Mapping[str, Operation]] = {
    "cards": Operation(_cards),
    "card-policy": Operation(_card_policy, changes=True),
    "card-cordon": Operation(_cordon, changes=True),
    "card-uncordon": Operation(_uncordon, changes=True),
}
