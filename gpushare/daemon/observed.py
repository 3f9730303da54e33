# SPDX-License-Identifier: Apache-2.0
"""Observations of cards and tenants, published by the observing threads for every other one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gpushare.daemon.cards.driver_client import DriverSample, ProcessUse
from gpushare.daemon.identity.pid_resolver import ListedPid
from gpushare.daemon.pages.status_page import ProcessClaim
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.placement.model import NonTenantProcess
from gpushare.daemon.policy import Choice
from gpushare.daemon.store.record import EvictionTotals, TenantRecord

WINDOWS: Final = (1, 10, 60)  # seconds
NO_FIGURES: Final[Mapping[int, float | None]] = MappingProxyType(dict.fromkeys(WINDOWS))
TenantOnCard = tuple[str, str]  # a tenant's key and a card's uuid


@dataclass(frozen=True)
class CardUsage:
    """The driver's figures of one card, less the tenants: high-water mark and current processes."""

    non_tenants: tuple[NonTenantProcess, ...] = ()
    non_tenant_bytes: int = 0
    health: str = "ok"
    utilization: int | None = None  # percent of its time
    compute_mode: str = ""  # as nvidia-smi names it; "": the default


@dataclass(frozen=True)
class UsageView:
    """The last look. `utilization`, `used` and `driver_bytes` are by TenantOnCard."""

    cards: Mapping[str, CardUsage] = field(default_factory=dict)
    processes: Mapping[str, tuple[tuple[str, ProcessUse], ...]] = field(default_factory=dict)
    utilization: Mapping[tuple[str, str], int] = field(default_factory=dict)
    used: Mapping[tuple[str, str], int] = field(default_factory=dict)  # bytes of the quota
    stale: str = ""  # why the audit may not use it; empty if it is the driver's answer
    #: What the driver says that a tenant holds of a card; 0 of those that it does not list.
    driver_bytes: Counter[TenantOnCard] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        for key, uses in self.processes.items():
            for uuid, use in uses:
                self.driver_bytes[key, uuid] += use.bytes or 0

    def is_active(self, key: str, uuid: str) -> bool:
        """Return whether the driver says that tenant `key` uses an engine of card `uuid`."""
        return any(use.is_active for card, use in self.processes.get(key, ()) if card == uuid)


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
    """A tenant's use of one card's compute, as of the last look.

    `cores_used` is percent of the card and `throttled` the part of the time in which it wanted the
    card and did not have it, 0..1, both by seconds; None: not known. `source` is where the figures
    come from: GATE, DRIVER, or "" where there are none. `driver` is what the driver measured.
    `forced_launches` and `throttled_ns` are what the tenant's processes claim, and those that this
    daemon saw before them; the other counts are the scheduler's.
    """

    source: str = ""
    gate: str = ""  # its mode; "" where there is none
    cores_used: Mapping[int, float | None] = field(default_factory=lambda: NO_FIGURES)
    throttled: Mapping[int, float | None] = field(default_factory=lambda: NO_FIGURES)
    charged_ns: int = 0
    windows: int = 0
    overruns: int = 0
    forced_launches: int = 0
    throttled_ns: int = 0
    is_hung: bool = False
    silent: bool = False  # the scheduler should have written its heartbeat, and did not
    driver: Mapping[int, float | None] = field(default_factory=lambda: NO_FIGURES)
    lately_percent: float | None = None  # the driver's over two seconds
    claimed_percent: float | None = None  # what its processes claim, over ten seconds
    ungated_percent: float | None = None  # of that, submitted at a closed gate
    owed_percent: float = 0.0  # by what the driver's figure is surely above the charge
    is_compared: bool = False  # both the gate and the driver have figures
    gate_bypassed: bool = False
    charged_percent: float | None = None  # by its gate, over ten seconds
    overcharged: bool = False  # for work of another tenant, which bypasses the gate
    correction_percent: int = 0  # of the charge: Share.correction_permille
    got_ns: int = 0  # of the card's time, by the gate or the driver; since this daemon looks
    last_active: float = 0.0  # seconds since the epoch: when it was last seen to use the card

    @property
    def driver_percent(self) -> float | None:
        """The driver's figure over ten seconds."""
        return self.driver[10]


@dataclass(frozen=True)
class AuditFinding:
    """The audit's finding about a tenant on a card, while it holds; `since` is of the epoch."""

    level: str
    choice: Choice
    used_bytes: int
    may_bytes: int
    since: float


@dataclass(frozen=True)
class Shortfall:
    """Memory within a tenant's quota that a card did not have, as it was last reported."""

    bytes: int
    seen: float  # seconds since the epoch
    seen_ns: int  # CLOCK_MONOTONIC
    times: int = 1
    logged_ns: int | None = None


@dataclass
class Observations:
    """All that the observing threads publish, for any thread: attributes are only replaced."""

    # Mappings without a comment are by TenantOnCard or a card's uuid.
    usage: UsageView = field(default_factory=UsageView)
    last: AuditInput | None = None  # the last sample; None: the driver did not answer
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)  # counts, by uuid and number
    unattributed: Mapping[str, int] = field(default_factory=dict)  # bytes that no process has
    peaks: Mapping[TenantOnCard, int] = field(default_factory=dict)  # the most bytes ever seen
    compute: Mapping[TenantOnCard, ComputeUsage] = field(default_factory=dict)
    findings: Mapping[TenantOnCard, AuditFinding] = field(default_factory=dict)
    #: Processes of containers that use a card without an allocation, each with the card's UUID.
    unallocated: tuple[tuple[str, NonTenantProcess], ...] = ()
    idle: Mapping[str, float] = field(default_factory=dict)  # by tenant key: since, of the epoch
    shortfalls: Mapping[TenantOnCard, Shortfall] = field(default_factory=dict)
    waiting: Mapping[str, float] = field(default_factory=dict)  # for a restore; as `idle`
    restore_faults: Mapping[str, str] = field(default_factory=dict)  # by tenant key: if not room
    # By tenant key: why one keeps memory that another lacked, when one was looked for last.
    unevictable: Mapping[str, str] = field(default_factory=dict)
    evictions: EvictionTotals = field(default_factory=EvictionTotals)
    sample_now: threading.Event = field(default_factory=threading.Event)  # set: do not wait

    def compute_of(self, key: str, uuid: str) -> ComputeUsage:
        """Return what tenant `key` got of card `uuid`."""
        return self.compute.get((key, uuid), ComputeUsage())
