# SPDX-License-Identifier: Apache-2.0
"""The operator's settings of a card: the compute policy of its tenants, and whether it is cordoned.

No tenant is placed on a cordoned card; its tenants keep running.
"""

from __future__ import annotations

from gpushare.daemon.core.log import log
from gpushare.daemon.node import CORDONED, Node
from gpushare.daemon.placement.model import Card
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger


def set_card_policy(uuid: str, policy: str, state: DaemonState) -> None:
    """Set the policy of the shared tenants of a card; "": each keeps its own.

    NoRoom if the card cannot reserve that many cores: nothing was changed.
    """
    capacities = state.accounts.capacities()
    capacity = next(capacity for capacity in capacities if capacity.card.uuid == uuid)
    together = sum(use.cores for use in capacity.reservations) + sum(
        record.reserved_cores(allocation, policy)
        for record in state.ledger.entries.values()
        for allocation in record.allocations
        if allocation.uuid == uuid and not allocation.whole
    )
    if together > 100:
        raise NoRoom(
            f"card {capacity.card.index} cannot reserve {together} % of its compute, as "
            f"{policy or 'its containers'} would require; first reduce what one of them has: "
            "gpushare set NAME --cores N"
        )
    if policy:
        state.node.card_overrides.set(uuid, {"policy": policy})
    else:
        state.node.card_overrides.forget(uuid, "policy")
    log("card-policy-changed", card=uuid, policy=policy or "of each container")
    state.ledger.changed()


def cordon_card(card: Card, reason: str, node: Node, ledger: Ledger) -> None:
    """Place nothing new on `card`, until `uncordon_card`, across restarts and reboots; OSError."""
    if node.card_overrides.of(card.uuid).get(CORDONED) == reason:
        return
    node.card_overrides.set(card.uuid, {CORDONED: reason})
    log("card-cordoned", card=card.uuid, index=card.index, reason=reason or "no reason given")
    ledger.changed()


def uncordon_card(card: Card, node: Node, ledger: Ledger) -> None:
    """Place on `card` again; OSError. One that is not cordoned is fine."""
    if CORDONED not in node.card_overrides.of(card.uuid):
        return
    node.card_overrides.forget(card.uuid, CORDONED)
    log("card-uncordoned", card=card.uuid, index=card.index)
    ledger.changed()
