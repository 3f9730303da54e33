# SPDX-License-Identifier: Apache-2.0
"""The daemon's state: the node, the ledger, tenants, overrides, and what was observed.

It builds nothing and knows nothing of what works on it: `composition` hands each part what it
needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpushare.daemon.cards.mps_state import MPS
from gpushare.daemon.core.log import Durations
from gpushare.daemon.core.loop import DaemonClock, KeyLocks, Loop, T, Worker, WorkerPool
from gpushare.daemon.core.signal import Signal
from gpushare.daemon.node import Node
from gpushare.daemon.observed import CardUsage, Observations
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import ProcessWatch
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.placement.model import AllocationUse, CardCapacity
from gpushare.daemon.placement.waiting import QueueState
from gpushare.daemon.policy.escalation import CHOICES, Choice
from gpushare.daemon.store.history import History
from gpushare.daemon.store.ledger import IntegrityCheck, Ledger
from gpushare.daemon.store.metrics_history import MetricsHistory
from gpushare.daemon.store.overrides import Overrides
from gpushare.daemon.store.record import TenantRecord
from gpushare.oci.prepared_image import PreparedImages


@dataclass
class DaemonState:
    """Everything the daemon has."""

    node: Node
    ledger: Ledger
    integrity: IntegrityCheck
    mounts: TenantMounts
    overrides: Overrides  # by the container's id
    tenants: Tenants
    loop: Loop
    watch: ProcessWatch
    decide: Worker
    creates: WorkerPool  # creates containers: an image, or its file system, may never answer
    requests: WorkerPool  # runs requests that an engine may have to answer
    freezing: Worker  # freezes, thaws and kills; nothing else, so that nothing delays it
    names: Worker
    clock: DaemonClock = field(default_factory=DaemonClock)
    observed: Observations = field(default_factory=Observations)
    sample_now: threading.Event = field(default_factory=threading.Event)  # set: do not wait
    # By card, until when it gives no more burst memory, in monotonic seconds; the decide thread's.
    withheld: dict[str, float] = field(default_factory=dict)
    durations: Durations = field(default_factory=Durations)
    history: History | None = None
    metrics_history: MetricsHistory | None = None
    sweeping: threading.Lock = field(default_factory=threading.Lock)  # of refused containers
    prepared_images: PreparedImages = field(default_factory=PreparedImages)
    creating: KeyLocks = field(default_factory=KeyLocks)  # by a tenant's key
    started: float = field(default_factory=time.time)  # seconds since the epoch
    # By sandbox and container, which other container has what it was refused; the decide thread's.
    refused_siblings: dict[str, dict[str, str]] = field(default_factory=dict)
    # With the group that alone may read, None: every user; the decide thread's.
    regrouped: Signal[[int | None]] = field(default_factory=Signal)
    queue: QueueState = field(default_factory=QueueState)

    def in_start(self, step: Callable[[], T]) -> T:
        """Return what `step` of a start returns, on the decide thread.

        Whatever follows the ledger is told after the answer.
        """

        def run() -> T:
            with self.ledger.changed.deferred(self.loop.soon):
                return step()

        return self.decide.run(run)

    @property
    def is_awaited(self) -> bool:
        """Whether a ticket waits, or was granted, or an evicted container waits for its restore."""
        return bool(self.ledger.tickets or self.observed.waiting)

    def is_frozen(self, key: str) -> bool:
        """Whether tenant `key` is frozen, or is about to be."""
        return self.ledger.is_frozen(key)

    def over_quota_action(self, record: TenantRecord) -> Choice:
        """Return how far the audit goes with a tenant: as the operator set for it, or for all."""
        chosen = self.overrides.of(record.settings_key).get("over-quota-action")
        chosen = chosen or self.node.config.terms_of(record.namespace).over
        return next(choice for choice in CHOICES if choice == chosen)

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
            rule = self.node.config.rule_of(card.index, card.uuid, card.model)
            policy = self.node.policy_of(card.uuid)
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
                    mode=rule.mode,
                    mode_source=rule.where.get("allowed_mode", ""),
                    compute_mode=usage.compute_mode,
                    max_tenants=rule.max_tenants,
                    max_tenants_source=rule.where.get("max_tenants", "max_tenants"),
                    cordoned=self.node.card_overrides.of(card.uuid).get(
                        "cordoned", rule.cordoned_by
                    ),
                    cordoned_by=rule.cordoned_by or "",
                    reservations=self.ledger.reserved_beside(card.uuid, policy, without),
                    backend=self.node.backend_of(card),
                    backend_source=rule.where.get("backend", ""),
                    backend_fault=self.node.mps.fault_of(card.uuid),
                    mps_partitions=rule.mps_partitions,
                )
            )
        return tuple(capacities)

    def _use(self, record: TenantRecord, number: int) -> AllocationUse:
        allocation = record.allocations[number]
        used_bytes, limit_bytes = self.use_of(record, number)
        return AllocationUse(
            record.title,
            allocation.quota_bytes,
            record.reserved_cores(allocation, self.node.policy_of(allocation.uuid)),
            allocation.whole,
            key=record.key,
            used_bytes=used_bytes,
            limit_bytes=limit_bytes,
            burst_limit_bytes=allocation.burst_limit_bytes,
            is_scheduled=record.is_scheduled,
            backend=MPS if record.isolation == MPS else "",
        )

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
        seen = max(self.observed.usage.driver_bytes(*place), record.evicted_bytes(number))
        if pages is None:
            # Its limit cannot be lowered: burst memory that it may have counts as used.
            most = (
                allocation.burst_limit_bytes if record.state == "bound" else allocation.quota_bytes
            )
            return max(seen, most), most
        known = self.observed.usage.used.get(place, 0 if record.state == "reserved" else None)
        most = max(allocation.burst_limit_bytes, pages.grant.most_bytes(number))
        if known is not None and max(known, seen) <= allocation.quota_bytes == most:
            return max(known, seen), allocation.quota_bytes
        claimed, limit, most = pages.use(number)
        # A tenant that claims more than it can have would keep others off the card.
        return max(seen, min(claimed, most)), limit
