# SPDX-License-Identifier: Apache-2.0
"""Operations on cards: show them, set a sharing policy, cordon and uncordon.

No tenant is placed on a cordoned card; its tenants keep running.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpushare.daemon.compute import shares
from gpushare.daemon.core.log import log
from gpushare.daemon.placement.model import Card
from gpushare.daemon.placement.request import find_card
from gpushare.daemon.service.control_request import ControlReply, ControlRequest, Operation, reply
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.overrides import CORDONED
from gpushare.daemon.views import status_rows
from gpushare.quota import ValueSource
from gpushare.quota.keys import KEYS, read

_REASON_MOST: Final = 200


def _cards(_request: ControlRequest, state: DaemonState) -> ControlReply:
    if state.driver is None:
        return reply()
    links, capacities = state.driver.links, state.capacities()
    fault = status_rows.scheduling_fault(state)
    rows = (status_rows.card_row(each, capacities, links, fault) for each in capacities)
    return (dict(row) for row in rows), {}


def _card_policy(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    card = find_card(request.text("card", 96), state.capacities()).card
    policy = ""
    if "policy" in request.fields:
        policy = str(
            read("policy", ValueSource("option", "policy"), request.text("policy"), KEYS).value
        )
    shares.set_card_policy(card.uuid, policy, state)
    return _card(card.uuid, state)


def _cordon(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    card = find_card(request.text("card", 96), state.capacities()).card
    reason = request.text("reason", _REASON_MOST) if "reason" in request.fields else ""
    cordon_card(card, reason, state)
    return _card(card.uuid, state)


def _uncordon(request: ControlRequest, state: DaemonState) -> ControlReply:
    request.root_only()
    card = find_card(request.text("card", 96), state.capacities()).card
    uncordon_card(card, state)
    return _card(card.uuid, state)


def _card(uuid: str, state: DaemonState) -> ControlReply:
    """Answer with the card as it is now."""
    capacities = state.capacities()
    capacity = next(capacity for capacity in capacities if capacity.card.uuid == uuid)
    links, fault = state.loaded().links, status_rows.scheduling_fault(state)
    return reply({"card": status_rows.card_row(capacity, capacities, links, fault)})


CARD_OPERATIONS: Final[Mapping[str, Operation]] = {
    "cards": Operation(_cards),
    "card-policy": Operation(_card_policy, "decide"),
    "card-cordon": Operation(_cordon, "decide"),
    "card-uncordon": Operation(_uncordon, "decide"),
}


def cordon_card(card: Card, reason: str, state: DaemonState) -> None:
    """Place nothing new on `card`, until `uncordon_card`, across restarts and reboots; OSError."""
    if state.card_overrides.of(card.uuid).get(CORDONED) == reason:
        return
    state.card_overrides.set(card.uuid, {CORDONED: reason})
    log("card-cordoned", card=card.uuid, index=card.index, reason=reason or "no reason given")


def uncordon_card(card: Card, state: DaemonState) -> None:
    """Place on `card` again; OSError. One that is not cordoned is fine."""
    if CORDONED not in state.card_overrides.of(card.uuid):
        return
    state.card_overrides.forget(card.uuid, CORDONED)
    log("card-uncordoned", card=card.uuid, index=card.index)
