# SPDX-License-Identifier: Apache-2.0
"""What is shown of cards, and what an operator changes of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpushare.daemon.compute import shares
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import find_card
from gpushare.daemon.service.request import Answer, Operation, Request, answer
from gpushare.daemon.views import rows
from gpushare.quota import Source
from gpushare.quota.keys import KEYS, read


def _cards(_request: Request, node: Node) -> Answer:
    if node.driver is None:
        return answer()
    most = node.config.max_shares
    return (dict(rows.card_row(room, most)) for room in node.rooms()), {}


def _card_policy(request: Request, node: Node) -> Answer:
    request.root_only()
    card = find_card(request.text("card", 96), node.rooms()).card
    policy = ""
    if "policy" in request.fields:
        policy = str(read("policy", Source("option", "policy"), request.text("policy"), KEYS).value)
    shares.set_policy(card.uuid, policy, node)
    room = next(room for room in node.rooms() if room.card.uuid == card.uuid)
    return answer({"card": rows.card_row(room, node.config.max_shares)})


OPERATIONS: Final[Mapping[str, Operation]] = {
    "cards": Operation(_cards),
    "card-policy": Operation(_card_policy, changes=True),
}
