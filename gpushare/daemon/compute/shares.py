# SPDX-License-Identifier: Apache-2.0
"""The share of each tenant on each of its cards, by the ledger's records and the policies.

Nothing is stored: each call computes the current shares.
"""

from __future__ import annotations

from gpushare.daemon.core.log import log
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.policy.compute import Share, ShareRequest, divide_compute, policy_on
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import CardAllocation, TenantRecord


def shares_on_card(uuid: str, state: DaemonState) -> dict[str, Share]:
    """Return the share of each tenant on a card; frozen and whole-card tenants have none."""
    claims = [
        ShareRequest(
            key=record.key,
            policy=record.policy,
            cores=allocation.cores,
            weight=record.weight,
            class_=record.class_,
            priority=record.priority,
            policy_is_set=record.is_set("policy"),
        )
        for record in state.ledger.entries.values()
        for allocation in record.allocations
        if allocation.uuid == uuid and not allocation.whole and not state.is_frozen(record.key)
    ]
    return divide_compute(claims, state.policy_of(uuid))


def effective_policy(record: TenantRecord, allocation: CardAllocation, card_policy: str) -> str:
    """Return the policy that holds for a tenant on the card of `allocation`."""
    if allocation.whole:
        return ""
    return policy_on(record.policy, allocation.cores, card_policy, is_set=record.is_set("policy"))


def set_card_policy(uuid: str, policy: str, state: DaemonState) -> None:
    """Set the policy of the shared tenants of a card; "": each keeps its own.

    NoRoom if the card cannot reserve that many cores: nothing was changed.
    """
    capacity = next(capacity for capacity in state.capacities() if capacity.card.uuid == uuid)
    reserved = [
        (record.title, cores)
        for record in state.ledger.entries.values()
        for allocation in record.allocations
        if allocation.uuid == uuid and not allocation.whole
        if (cores := record.reserved_cores(allocation, policy))
    ]
    reserved += [(use.tenant, use.cores) for use in capacity.reservations if use.cores]
    together = sum(cores for _, cores in reserved)
    if together > 100:
        names = ", ".join(f"{name} {cores}" for name, cores in reserved)
        raise NoRoom(
            f"card {capacity.card.index} cannot reserve {together} % of its compute, as "
            f"{policy or 'its containers'} would require ({names}); first reduce one of them: "
            "gpushare set NAME --cores N"
        )
    if policy:
        state.card_overrides.set(uuid, {"policy": policy})
    else:
        state.card_overrides.forget(uuid, "policy")
    log("card-policy-changed", card=uuid, policy=policy or "of each container")
    state.shares_changed()
