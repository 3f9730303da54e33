# SPDX-License-Identifier: Apache-2.0
"""The daemon's state: configuration, ledger, tenants, cards, overrides, and what was observed.

It builds nothing and knows nothing of what works on it: `composition` hands each part what it
needs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpushare.config import Config
from gpushare.daemon.cards.context_size import ContextSizes
from gpushare.daemon.cards.driver_client import DriverClient, DriverSample, ProcessUse
from gpushare.daemon.cards.mps_state import MPS, MpsCards
from gpushare.daemon.core.log import Durations
from gpushare.daemon.core.loop import DaemonClock, KeyLocks, Loop, T, Worker, WorkerPool
from gpushare.daemon.core.signal import Signal
from gpushare.daemon.identity.pid_resolver import ListedPid
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import ProcessWatch
from gpushare.daemon.pages.status_page import ProcessClaim
from gpushare.daemon.pages.tenants import Pages, Tenants
from gpushare.daemon.placement.model import (
    AllocationUse,
    Card,
    CardCapacity,
    Links,
    NonTenantProcess,
)
from gpushare.daemon.placement.waiting import QueueState
from gpushare.daemon.policy.escalation import CHOICES, Choice
from gpushare.daemon.store.history import History
from gpushare.daemon.store.ledger import IntegrityCheck, Ledger
from gpushare.daemon.store.metrics_history import MetricsHistory
from gpushare.daemon.store.overrides import Overrides
from gpushare.daemon.store.record import EvictionTotals, TenantRecord
from gpushare.errors import UserError
from gpushare.host.numa import Numa
from gpushare.oci.driver_files import DriverFiles, simulator_env
from gpushare.oci.elf import Platform
from gpushare.oci.prepared_image import PreparedImages
from gpushare.settings import INTERPOSER

WINDOWS: Final = (1, 10, 60)  # seconds
NO_FIGURES: Final[Mapping[int, float | None]] = MappingProxyType(dict.fromkeys(WINDOWS))
TenantOnCard = tuple[str, str]  # a tenant's key and a card's uuid


class NoDriver(UserError):
    """This machine has no NVIDIA driver that could be loaded, and something needs it."""


@dataclass(frozen=True)
class CardUsage:
    """The driver's figures of one card, less the tenants: high-water mark and current processes."""

    non_tenants: tuple[NonTenantProcess, ...] = ()
    non_tenant_bytes: int = 0
    health: str = "ok"
    utilisation: int | None = None  # percent of its time
    compute_mode: str = ""  # as nvidia-smi names it; "": the default


@dataclass(frozen=True)
class UsageView:
    """The last look. `utilisation` and `used` are by (tenant key, card uuid)."""

    cards: Mapping[str, CardUsage] = field(default_factory=dict)
    processes: Mapping[str, tuple[tuple[str, ProcessUse], ...]] = field(default_factory=dict)
    utilisation: Mapping[tuple[str, str], int] = field(default_factory=dict)
    used: Mapping[tuple[str, str], int] = field(default_factory=dict)  # bytes of the quota
    stale: str = ""  # why the audit may not use it; empty if it is the driver's answer

    def driver_bytes(self, key: str, uuid: str) -> int:
        """Return what the driver says that tenant `key` holds of card `uuid`."""
        return sum(use.bytes or 0 for card, use in self.processes.get(key, ()) if card == uuid)


@dataclass(frozen=True)
class AuditInput:
    """All of one sample that the driver answered, for the audit.

    `owned` has what each card's processes take, by the card's uuid, and `before` and `after` what
    the tenants claimed, by their key, before the driver's call and after its reply. The claims of
    those in `unread` are from an earlier sample, and prove nothing of this one.
    """

    entries: Mapping[str, TenantRecord]
    pages: Mapping[str, Pages]
    sample: DriverSample
    owned: Mapping[str, tuple[tuple[ListedPid | None, ProcessUse], ...]]
    before: Mapping[str, tuple[ProcessClaim, ...]]
    after: Mapping[str, tuple[ProcessClaim, ...]]
    unread: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ComputeUsage:
    """What a tenant got of one card, as of the last look.

    `got` is percent of the card and `throttled` the part of the time in which it wanted the card
    and did not have it, 0..1, both by seconds; None: not known. `source` is where the figures come
    from: GATE, DRIVER, or "" where there are none. `driver` is what the driver measured. `forced`
    and `waited_ns` are what the tenant's processes claim, and those that this daemon saw before
    them; the other counts are the scheduler's.
    """

    source: str = ""
    gate: str = ""  # its mode; "" where there is none
    got: Mapping[int, float | None] = field(default_factory=lambda: NO_FIGURES)
    throttled: Mapping[int, float | None] = field(default_factory=lambda: NO_FIGURES)
    charged_ns: int = 0
    windows: int = 0
    overruns: int = 0
    forced: int = 0
    waited_ns: int = 0
    hung: bool = False
    silent: bool = False  # the scheduler should have written its heartbeat, and did not
    driver: Mapping[int, float | None] = field(default_factory=lambda: NO_FIGURES)
    lately_percent: float | None = None  # the driver's over two seconds
    claimed_percent: float | None = None  # what its processes claim, over ten seconds
    ungated_percent: float | None = None  # of that, submitted at a closed gate
    is_compared: bool = False  # both the gate and the driver have figures
    bypassed: bool = False
    charged_percent: float | None = None  # by its gate, over ten seconds
    overcharged: bool = False  # for work of another tenant, which bypasses the gate
    correction_percent: int = 0  # of the charge: Share.correction_permille
    got_ns: int = 0  # of the card's time, by the gate or the driver; since this daemon looks
    active: float = 0.0  # seconds since the epoch: when it was last seen to use the card

    @property
    def driver_percent(self) -> float | None:
        """What the driver measured over ten seconds."""
        return self.driver[10]


@dataclass(frozen=True)
class AuditFinding:
    """What there is to show of a tenant on a card, while there is; `since` is of the epoch."""

    level: str
    choice: Choice
    used_bytes: int
    may_bytes: int
    since: float


@dataclass(frozen=True)
class UnallocatedContainer:
    """A process of a container that uses the card `uuid` without an allocation."""

    pid: int
    name: str
    container: str
    uuid: str
    bytes: int


@dataclass(frozen=True)
class Shortfall:
    """What a card did not have for a tenant within its quota, the last time that it reported it."""

    bytes: int
    seen: float  # seconds since the epoch
    seen_ns: int  # CLOCK_MONOTONIC
    times: int = 1
    logged_ns: int | None = None


@dataclass
class Observations:
    """What the observing threads have published, for any thread: attributes are only replaced."""

    # Mappings without a comment are by TenantOnCard or a card's uuid.
    usage: UsageView = field(default_factory=UsageView)
    last: AuditInput | None = None  # the last sample; None: the driver did not answer
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)  # counts, by uuid and number
    unattributed: Mapping[str, int] = field(default_factory=dict)  # bytes that no process has
    peaks: Mapping[TenantOnCard, int] = field(default_factory=dict)  # the most bytes ever seen
    compute: Mapping[TenantOnCard, ComputeUsage] = field(default_factory=dict)
    findings: Mapping[TenantOnCard, AuditFinding] = field(default_factory=dict)
    unallocated: tuple[UnallocatedContainer, ...] = ()
    idle: Mapping[str, float] = field(default_factory=dict)  # by tenant key: since, of the epoch
    shortfalls: Mapping[TenantOnCard, Shortfall] = field(default_factory=dict)
    waiting: Mapping[str, float] = field(default_factory=dict)  # for a restore; as `idle`
    restore_faults: Mapping[str, str] = field(default_factory=dict)  # by tenant key: if not room
    evictions: EvictionTotals = field(default_factory=EvictionTotals)

    def compute_of(self, key: str, uuid: str) -> ComputeUsage:
        """Return what tenant `key` got of card `uuid`."""
        return self.compute.get((key, uuid), ComputeUsage())


@dataclass(frozen=True)
class LoadedDriver:
    """A driver that answers: its files (CDI), its NVML and its cards."""

    files: DriverFiles
    nvml: DriverClient
    cards: tuple[Card, ...]
    contexts: ContextSizes
    time_scale: float = 1.0  # what a simulated card multiplies every duration by

    @property
    def links(self) -> Links:
        """How far the cards are from each other."""
        return self.nvml.links()

    @property
    def is_simulated(self) -> bool:
        """Whether the cards are a simulator's."""
        return bool(self.env)

    @property
    def env(self) -> dict[str, str]:
        """What a host process needs to find the driver's device: a simulated one is a file."""
        return simulator_env(self.files)

    def card(self, uuid: str) -> Card | None:
        """Return the card with that uuid, None when it is gone."""
        return next((card for card in self.cards if card.uuid == uuid), None)


@dataclass(frozen=True)
class DriverFingerprint:
    """What changes with the driver: the module's version, the majors, the libraries' files."""

    module: str | None
    majors: str
    files: tuple[tuple[int, ...] | None, ...]


@dataclass
class DaemonState:
    """Everything the daemon has. Without a `driver`, `no_driver_reason` says why."""

    config: Config
    platform: Platform
    ledger: Ledger
    integrity: IntegrityCheck
    mounts: TenantMounts
    overrides: Overrides  # by the container's id
    card_overrides: Overrides  # by the card's uuid
    node_labels: Overrides  # settings of the node, by the label that sets them
    tenants: Tenants
    loop: Loop
    watch: ProcessWatch
    decide: Worker
    creates: WorkerPool  # creates containers: an image, or its file system, may never answer
    requests: WorkerPool  # runs requests that an engine may have to answer
    freezing: Worker  # freezes, thaws and kills; nothing else, so that nothing delays it
    names: Worker
    clock: DaemonClock = field(default_factory=DaemonClock)
    driver: LoadedDriver | None = None
    no_driver_reason: str = ""
    fingerprint: DriverFingerprint | None = None  # of the driver as it was last taken over
    scheduler_pid: int = 0  # the process that enforces compute shares; 0: none
    scheduler_fault: str = ""  # why not, or for which tenant not
    driver_fault: str = ""  # why the driver, which was loaded, can no longer be used for containers
    warnings: list[str] = field(default_factory=list)
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
    config_fault: str = ""  # why the current file was rejected
    # With the group that alone may read, None: every user; the decide thread's.
    regrouped: Signal[[int | None]] = field(default_factory=Signal)
    numa: Numa = field(default_factory=Numa)
    queue: QueueState = field(default_factory=QueueState)
    mps: MpsCards = field(default_factory=MpsCards)
    _libraries: Path = Path("/")  # where `config.libraries` led last

    @property
    def libraries(self) -> Path:
        """The versioned folder that `libraries` leads to: a mount's source is never rewritten."""
        link, known = self.config.libraries, self._libraries
        with contextlib.suppress(OSError):
            if link.samefile(known):  # two calls, where resolve() is one for each of its parents
                return known
        self._libraries = found = link.resolve()
        return found

    def in_start(self, step: Callable[[], T]) -> T:
        """Return what `step` of a start returns, on the decide thread.

        Whatever follows the ledger is told after the answer.
        """

        def run() -> T:
            with self.ledger.changed.deferred(self.loop.soon):
                return step()

        return self.decide.run(run)

    def loaded(self) -> LoadedDriver:
        """Return the driver; NoDriver where there is none."""
        if self.driver is None:
            raise NoDriver(f"{self.no_driver_reason}; see gpushare doctor")
        return self.driver

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
        chosen = chosen or self.config.terms_of(record.namespace).over
        return next(choice for choice in CHOICES if choice == chosen)

    def policy_of(self, uuid: str) -> str:
        """Return the policy that the operator set for a card, "" if none is set."""
        return self.card_overrides.of(uuid).get("policy", "")

    def backend_of(self, card: Card, config: Config | None = None) -> str:
        """Return the backend of a card's shares, by this or another `config`: interposer or mps."""
        rule = (config or self.config).rule_of(card.index, card.uuid, card.model)
        return INTERPOSER if card.instance or card.is_divided else rule.backend

    def capacities(self, without: str = "") -> tuple[CardCapacity, ...]:
        """Return each card with its allocations, and what is reserved but for file `without`."""
        driver, view = self.loaded(), self.observed.usage
        capacities = []
        uses: dict[str, list[AllocationUse]] = {card.uuid: [] for card in driver.cards}
        for record in self.ledger.entries.values():
            for number, allocation in enumerate(() if record.is_off_card else record.allocations):
                if allocation.uuid in uses:
                    uses[allocation.uuid].append(self._use(record, number))
        for card in driver.cards:
            usage = view.cards.get(card.uuid, CardUsage())
            rule = self.config.rule_of(card.index, card.uuid, card.model)
            policy = self.policy_of(card.uuid)
            capacities.append(
                CardCapacity(
                    card,
                    allocations=tuple(uses[card.uuid]),
                    non_tenants=usage.non_tenants,
                    non_tenant_bytes=usage.non_tenant_bytes,
                    reserve_bytes=self.config.reserve_bytes,
                    context_bytes=driver.contexts.sizes.get(card.model, 0),
                    health=usage.health,
                    utilisation=usage.utilisation,
                    unattributed_bytes=self.observed.unattributed.get(card.uuid, 0),
                    policy=policy,
                    mode=rule.mode,
                    mode_source=rule.where.get("allowed_mode", ""),
                    compute_mode=usage.compute_mode,
                    max_tenants=rule.max_tenants,
                    max_tenants_source=rule.where.get("max_tenants", "max_tenants"),
                    cordoned=self.card_overrides.of(card.uuid).get("cordoned", rule.cordoned_by),
                    cordoned_by=rule.cordoned_by or "",
                    reservations=self.ledger.reserved_beside(card.uuid, policy, without),
                    backend=self.backend_of(card),
                    backend_source=rule.where.get("backend", ""),
                    backend_fault=self.mps.fault_of(card.uuid),
                    mps_partitions=rule.mps_partitions,
                )
            )
        return tuple(capacities)

    def _use(self, record: TenantRecord, number: int) -> AllocationUse:
        allocation = record.allocations[number]
        used_bytes, limit_bytes = self.use_of(record, number)
        return AllocationUse(
            record.title,
            allocation.memory_bytes,
            record.reserved_cores(allocation, self.policy_of(allocation.uuid)),
            allocation.whole,
            key=record.key,
            used_bytes=used_bytes,
            limit_bytes=limit_bytes,
            most_bytes=allocation.most_bytes,
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
            return allocation.memory_bytes, allocation.memory_bytes
        seen = max(self.observed.usage.driver_bytes(*place), record.evicted_bytes(number))
        if pages is None:
            # Its limit cannot be lowered: burst memory that it may have counts as used.
            most = allocation.most_bytes if record.state == "bound" else allocation.memory_bytes
            return max(seen, most), most
        known = self.observed.usage.used.get(place, 0 if record.state == "reserved" else None)
        most = max(allocation.most_bytes, pages.grant.most_bytes(number))
        if known is not None and max(known, seen) <= allocation.memory_bytes == most:
            return max(known, seen), allocation.memory_bytes
        claimed, limit, most = pages.use(number)
        # A tenant that claims more than it can have would keep others off the card.
        return max(seen, min(claimed, most)), limit
