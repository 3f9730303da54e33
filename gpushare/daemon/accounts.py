# SPDX-License-Identifier: Apache-2.0
"""The account of each card: its capacity, allocations, reservations, and the use of tenants."""

from __future__ import annotations

from dataclasses import replace

from gpushare.daemon.cards.mps_state import MPS
from gpushare.daemon.node import Node
from gpushare.daemon.observed import CardUsage, Observations
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.placement.model import AllocationUse, CardCapacity
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.quota.size import parse_size


class CardAccounts:
    """The accounts of all cards, by the ledger, the last sample, and what tenants claim."""

    def __init__(
        self, node: Node, ledger: Ledger, observed: Observations, tenants: Tenants
    ) -> None:
        self.node, self.ledger, self.observed = node, ledger, observed
        self.tenants = tenants

    def capacities(self, without: str = "") -> tuple[CardCapacity, ...]:
        """Return each card with its allocations, and what is reserved but for file `without`."""
        driver, view = self.node.loaded(), self.observed.usage
        capacities = []
        uses: dict[str, list[AllocationUse]] = {card.uuid: [] for card in driver.cards}
        for record in self.ledger.entries.values():
            for number, allocation in enumerate(() if record.is_off_card else record.allocations):
                if allocation.uuid in uses:
                    uses[allocation.uuid].append(self._use(record, number))
        for card in driver.cards:
            usage = view.cards.get(card.uuid, CardUsage())
            rule = self.node.rule_of(card)
            overrides = self.node.card_overrides.of(card.uuid)
            policy, backend = self.node.policy_of(card.uuid), self.node.backend_of(card)
            capacities.append(
                CardCapacity(
                    card,
                    allocations=tuple(uses[card.uuid]),
                    non_tenants=usage.non_tenants,
                    non_tenant_bytes=usage.non_tenant_bytes,
                    reserve_bytes=self.node.config.reserve_bytes,
                    context_bytes=driver.contexts.sizes.get(card.model, 0),
                    health=usage.health,
                    utilization=usage.utilization,
                    unattributed_bytes=self.observed.unattributed.get(card.uuid, 0),
                    policy=policy,
                    rule=rule,
                    compute_mode=usage.compute_mode,
                    cordoned=overrides.get("cordoned", rule.cordoned_by),
                    reservations=tuple(
                        use if self._has_claims else replace(use, is_scheduled=False)
                        for use in self.ledger.reserved_beside(card.uuid, policy, without)
                    ),
                    backend=backend,
                    backend_fault=self.node.mps.fault_of(card.uuid) if backend == MPS else "",
                )
            )
        return tuple(capacities)

    def _use(self, record: TenantRecord, number: int) -> AllocationUse:
        allocation = record.allocations[number]
        used_bytes, limit_bytes = self.use_of(record, number)
        grant = self.node.mps.grant_of(record.key) if record.isolation == MPS else None
        return AllocationUse(
            record.title,
            allocation.quota_bytes,
            record.reserved_cores(allocation, self.node.policy_of(allocation.uuid)),
            allocation.whole,
            key=record.key,
            used_bytes=used_bytes,
            limit_bytes=limit_bytes,
            burst_limit_bytes=allocation.burst_limit_bytes,
            is_scheduled=record.is_scheduled and bool(record.claim) == self._has_claims,
            added_bytes=_added_bytes(record, allocation),
            backend=MPS if record.isolation == MPS else "",
            uid=None if grant is None else grant.uid,
        )

    @property
    def _has_claims(self) -> bool:
        """Whether claims, and not the device plugin, allocate memory on this node."""
        return self.node.config.kubernetes_mode == "dra"

    def use_of(self, record: TenantRecord, number: int) -> tuple[int, int]:
        """Return what a tenant uses of a card and what it may use, as far as it can be believed.

        Never less than the driver's figure in the last sample, whatever the tenant claims. The
        claims of a tenant that stays within its quota, and never had a higher limit, are not read
        again: its quota is allocated anyway. A tenant that does not run yet uses nothing.
        """
        allocation, pages = record.allocations[number], self.tenants.pages.get(record.key)
        place = record.key, allocation.uuid
        if allocation.whole:
            return allocation.quota_bytes, allocation.quota_bytes
        measured = max(self.observed.usage.driver_bytes(*place), record.evicted_bytes(number))
        if pages is None:
            # Its limit cannot be lowered: burst memory that it may have counts as used.
            is_bound = record.state == "bound"
            most = allocation.burst_limit_bytes if is_bound else allocation.quota_bytes
            return max(measured, most), most
        known = self.observed.usage.used.get(place, 0 if record.state == "reserved" else None)
        most = max(allocation.burst_limit_bytes, pages.grant.most_bytes(number))
        if known is not None and max(known, measured) <= allocation.quota_bytes == most:
            return max(known, measured), allocation.quota_bytes
        claimed, limit, most = pages.use(number)
        # A tenant that claims more than it can have would keep others off the card.
        return max(measured, min(claimed, most)), limit


def _added_bytes(record: TenantRecord, allocation: CardAllocation) -> int:
    """Return what an operator has added to the memory that a container requested of a card."""
    if record.claim or not record.is_set("memory") or "memory" not in record.requested:
        return 0
    return max(0, allocation.quota_bytes - parse_size(record.requested["memory"]["value"]))
