# SPDX-License-Identifier: Apache-2.0
"""What each tenant is to get of each of its cards: the ledger's words, put through the policies.

Nothing here is remembered: whoever wants to know asks again, and gets what holds now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpushare.daemon.log import log
from gpushare.daemon.placement.choose import NoRoom
from gpushare.daemon.policy import Claim, Share, policy_on, reserved_cores, shares
from gpushare.daemon.store.ledger import Entry, Holding

if TYPE_CHECKING:
    from gpushare.daemon.node import Node


def of_card(uuid: str, node: Node) -> dict[str, Share]:
    """Return the share of each tenant of a card, by its key; whole cards and the held have none."""
    claims = [
        Claim(
            key=entry.key,
            policy=entry.policy,
            cores=holding.cores,
            weight=entry.weight,
            class_=entry.class_,
            priority=entry.priority,
            policy_is_set=entry.is_set("policy"),
        )
        for entry in node.ledger.entries.values()
        for holding in entry.holdings
        if holding.uuid == uuid and not holding.whole and not node.freezer.is_held(entry.key)
    ]
    return shares(claims, node.policy_of(uuid))


def of_tenant(entry: Entry, node: Node) -> tuple[Share, ...]:
    """Return the shares of a tenant that is in the ledger, by its card number."""
    if not entry.shared:
        return ()
    return tuple(of_card(holding.uuid, node)[entry.key] for holding in entry.holdings)


def policy_of(entry: Entry, holding: Holding, card_policy: str) -> str:
    """Return the policy that holds for a tenant on the card of `holding`."""
    if holding.whole:
        return ""
    return policy_on(entry.policy, holding.cores, card_policy, is_set=entry.is_set("policy"))


def reserved(entry: Entry, policies: Mapping[str, str]) -> Entry:
    """Return `entry` with the cores set aside that go with `policies`, of its cards by UUID."""
    return replace(
        entry,
        holdings=tuple(
            holding
            if holding.whole
            else replace(
                holding,
                reserved_cores=reserved_cores(
                    policy_of(entry, holding, policies.get(holding.uuid, "")), holding.cores
                ),
            )
            for holding in entry.holdings
        ),
    )


def policies(node: Node) -> dict[str, str]:
    """Return the policy that the operator set for each card of a tenant, "" for none, by UUID."""
    held = {holding.uuid for entry in node.ledger.entries.values() for holding in entry.holdings}
    return {uuid: node.policy_of(uuid) for uuid in held}


def set_policy(uuid: str, policy: str, node: Node) -> None:
    """Have `policy` hold for the shared tenants of a card; "": each has what it asks again.

    NoRoom where more cores would have to be set aside than the card has: nothing was changed.
    """
    room = next(room for room in node.rooms() if room.card.uuid == uuid)
    wanted = {**policies(node), uuid: policy}
    entries = [
        reserved(entry, wanted)
        for entry in node.ledger.entries.values()
        if any(holding.uuid == uuid for holding in entry.holdings)
    ]
    asked = [
        (entry.title, holding.reserved_cores)
        for entry in entries
        for holding in entry.holdings
        if holding.uuid == uuid and holding.reserved_cores and not holding.whole
    ]
    together = sum(cores for _, cores in asked)
    if together > 100:
        who = ", ".join(f"{name} {cores}" for name, cores in asked)
        raise NoRoom(
            f"card {room.card.index} cannot set {together} % of its compute aside, as "
            f"{policy or 'what its containers ask'} would ({who}); first have one of them ask for "
            "less: gpushare set NAME --cores N"
        )
    if policy:
        node.card_overrides.set(uuid, {"policy": policy})
    else:
        node.card_overrides.forget(uuid, "policy")
    node.ledger.resize(*entries)
    log("card-policy", card=uuid, policy=policy or "of each container")
    tell(node)


def settle(node: Node) -> None:
    """Have the ledger say what the cards' policies do: a daemon may have ended between the two."""
    held = policies(node)
    settled = [reserved(entry, held) for entry in node.ledger.entries.values()]
    changed = [entry for entry in settled if entry != node.ledger.entries[entry.key]]
    if changed:
        node.ledger.resize(*changed)


def tell(node: Node) -> None:
    """Tell the scheduler what has changed."""
    node.shares_changed()
