# SPDX-License-Identifier: Apache-2.0
"""The containers of a ResourceClaim share its reservation: together they never have more."""

from __future__ import annotations

from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.claim import ClaimRecord, unused_part, used_parts
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.quota import format_size


def refuse_above_claim(record: TenantRecord, state: DaemonState) -> bool:
    """Raise NoRoom if `record` and the other containers of its claim would have more than that.

    False if it has no claim, or if that was released: then its cards decide.
    """
    claim = state.ledger.claims.get(record.claim)
    if claim is None:
        return False
    for allocation in record.allocations:
        _refuse_on_card(record, allocation, claim, state)
    return True


def _refuse_on_card(
    record: TenantRecord, allocation: CardAllocation, claim: ClaimRecord, state: DaemonState
) -> None:
    uuid, policy = allocation.uuid, state.policy_of(allocation.uuid)
    others = (one for one in state.ledger.entries.values() if one.key != record.key)
    part, left = claim.part(uuid), unused_part(claim, uuid, used_parts(uuid, others, policy))
    card = state.loaded().card(uuid)
    where = f"of card {uuid if card is None else card.index}"
    if allocation.whole:
        if left.memory_bytes < part.memory_bytes:
            raise NoRoom(
                f"another container of {claim.title} has a part {where}, and {record.title} "
                "requests all of it. Use the claim in one container, or request a share in each"
            )
        return
    cores = record.reserved_cores(allocation, policy)
    if allocation.memory_bytes > left.memory_bytes:
        raise NoRoom(
            f"{record.title} requests {format_size(allocation.memory_bytes)} {where}, and "
            f"{claim.title} has {format_size(left.memory_bytes)} of "
            f"{format_size(part.memory_bytes)} left there. To divide a claim among containers, "
            "set gpushare.io/container.NAME.memory for each"
        )
    if cores > left.cores:
        raise NoRoom(
            f"{record.title} requests {cores} % of the compute {where}, and {claim.title} has "
            f"{left.cores} of {part.cores} % left there. To divide a claim among containers, set "
            "gpushare.io/container.NAME.cores for each"
        )
