# SPDX-License-Identifier: Apache-2.0
"""What the operations of the daemon work on: this machine's cards, ledger and open tenants."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.config import Config
from gpushare.daemon.audit.audit import Audit
from gpushare.daemon.audit.overuse import Overuse
from gpushare.daemon.audit.truth import Truth
from gpushare.daemon.audit.view import CardTruth
from gpushare.daemon.cards.calibration import Contexts
from gpushare.daemon.cards.capacity import Promise, Room
from gpushare.daemon.cards.card import Card, Driver
from gpushare.daemon.cards.nvml import Nvml
from gpushare.daemon.cards.topology import Links
from gpushare.daemon.compute.spent import Spending
from gpushare.daemon.control.freezer import Freezer
from gpushare.daemon.identity.siblings import Siblings
from gpushare.daemon.memory.lacked import Lacked
from gpushare.daemon.memory.peaks import Peaks
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.service.durations import Durations
from gpushare.daemon.service.loop import Loop
from gpushare.daemon.service.watch import Watch
from gpushare.daemon.service.worker import Worker
from gpushare.daemon.store.doubt import Doubt
from gpushare.daemon.store.history import History
from gpushare.daemon.store.ledger import Entry, Ledger
from gpushare.daemon.store.overrides import Overrides
from gpushare.daemon.tenants import Tenants
from gpushare.errors import UserError
from gpushare.host.numa import Numa
from gpushare.oci.driver import Driver as DriverFiles
from gpushare.oci.platform import Platform

SIMULATED_DEVICE: Final = "/dev/gpushare-sim"


class NoDriver(UserError):
    """This machine has no NVIDIA driver that could be loaded, and something needs it."""


@dataclass(frozen=True)
class Loaded:
    """A driver that answers: its files (CDI), its voice (NVML) and what is measured of it."""

    files: DriverFiles
    nvml: Driver
    cards: tuple[Card, ...]
    contexts: Contexts
    truth: Truth
    slow_motion: float = 1.0  # what a simulated card multiplies every duration by

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
class Signs:
    """What changes with the driver: the module's version, the majors, the libraries' files."""

    module: str | None
    majors: str
    files: tuple[tuple[int, ...] | None, ...]


@dataclass
class Node:
    """Everything the daemon has. `driver` is None, and `why_none` says why, where none loads."""

    config: Config
    platform: Platform
    ledger: Ledger
    doubt: Doubt
    mounts: TenantMounts
    overrides: Overrides  # by the container's id
    card_overrides: Overrides  # by the card's uuid
    tenants: Tenants
    loop: Loop
    watch: Watch
    decide: Worker
    names: Worker
    driver: Loaded | None = None
    why_none: str = ""
    opening: Nvml | None = None  # a driver whose library is still being loaded
    signs: Signs | None = None  # of the driver as it was last taken over
    scheduler_pid: int = 0  # who holds shares of compute; 0: nobody
    scheduler_fault: str = ""  # why not, or of whom not
    driver_fault: str = ""  # why the driver, which was loaded, cannot be given any more
    warnings: list[str] = field(default_factory=list)
    spending: Spending = field(init=False)
    freezer: Freezer = field(init=False)
    audit: Audit = field(init=False)
    overuse: Overuse = field(init=False)
    peaks: Peaks = field(default_factory=Peaks)
    lacked: Lacked = field(default_factory=Lacked)
    # By card, until when nothing more is lent of it, in monotonic seconds; the decide thread's.
    withheld: dict[str, float] = field(default_factory=dict)
    durations: Durations = field(default_factory=Durations)
    history: History | None = None
    started: float = field(default_factory=time.time)  # seconds since the epoch
    siblings: Siblings = field(default_factory=Siblings)
    config_fault: str = ""  # why the file, as it is now, was not taken over
    # Called by the decide thread with the group that alone may read; None: everybody may.
    regroup: Callable[[int | None], None] = lambda _: None
    numa: Numa = field(default_factory=Numa)
    # Called by the decide thread after what tenants are to get may have changed.
    shares_changed: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        """Look at the tenants of this ledger."""
        self.spending = Spending(self.ledger, self.tenants)
        self.freezer = Freezer(self.ledger, self._held_changed)
        self.audit = Audit(self)
        self.overuse = Overuse(self)

    def _held_changed(self) -> None:
        self.shares_changed()

    @property
    def libraries(self) -> Path:
        """The versioned folder that `libraries` leads to: a mount's source is never rewritten."""
        return self.config.libraries.resolve()

    def loaded(self) -> Loaded:
        """Return the driver; NoDriver where there is none."""
        if self.driver is None:
            raise NoDriver(f"{self.why_none}; see gpushare doctor")
        return self.driver

    def policy_of(self, uuid: str) -> str:
        """Return the policy that the operator set for a card, "" where he set none."""
        return self.card_overrides.of(uuid).get("policy", "")

    def rooms(self, entries: Mapping[str, Entry] | None = None) -> tuple[Room, ...]:
        """Return each card with what is promised of it, by `entries` or by the ledger now."""
        driver = self.loaded()
        current = self.ledger.entries if entries is None else entries
        view = driver.truth.view
        rooms = []
        for card in driver.cards:
            truth = view.cards.get(card.uuid, CardTruth())
            rule = self.config.rule_of(card.index, card.uuid, card.model)
            promises = tuple(
                self._promise(entry, number, driver)
                for entry in current.values()
                for number, holding in enumerate(entry.holdings)
                if holding.uuid == card.uuid
            )
            rooms.append(
                Room(
                    card,
                    promises=promises,
                    foreign=truth.foreign,
                    foreign_bytes=truth.foreign_bytes,
                    reserve_bytes=self.config.reserve_bytes,
                    context_bytes=driver.contexts.bytes_of(card),
                    health=truth.health,
                    utilisation=truth.utilisation,
                    unattributed_bytes=self.audit.unattributed.view.get(card.uuid, 0),
                    policy=self.policy_of(card.uuid),
                    mode=rule.mode,
                    mode_said=rule.where.get("mode", ""),
                    max_shares=rule.max_shares,
                    max_shares_said=rule.where.get("max_shares", "max_shares"),
                    cordoned=self.card_overrides.of(card.uuid).get("cordoned"),
                )
            )
        return tuple(rooms)

    def _promise(self, entry: Entry, number: int, driver: Loaded) -> Promise:
        holding = entry.holdings[number]
        used_bytes, limit_bytes = self._use(entry, number, driver)
        return Promise(
            entry.title,
            holding.memory_bytes,
            holding.reserved_cores,
            holding.whole,
            key=entry.key,
            used_bytes=used_bytes,
            limit_bytes=limit_bytes,
            most_bytes=holding.most_bytes,
        )

    def _use(self, entry: Entry, number: int, driver: Loaded) -> tuple[int, int]:
        """Return what a tenant uses of a card and what it may use, as far as it can be believed.

        Never less than the driver said at the last look, whatever it claims. Who stays within its
        promise, and was never allowed more, is not asked again: it takes what it was promised
        anyway. Who does not run yet uses nothing.
        """
        holding, pages = entry.holdings[number], self.tenants.pages.get(entry.key)
        place = entry.key, holding.uuid
        if holding.whole:
            return holding.memory_bytes, holding.memory_bytes
        seen = driver.truth.view.driver_bytes(*place)
        if pages is None:
            # Nobody can lower its limit: what it may have been lent is as good as used.
            most = holding.most_bytes if entry.state == "bound" else holding.memory_bytes
            return max(seen, most), most
        known = driver.truth.view.used.get(place, 0 if entry.state == "reserved" else None)
        most = max(holding.most_bytes, pages.grant.most_bytes(number))
        if known is not None and max(known, seen) <= holding.memory_bytes == most:
            return max(known, seen), holding.memory_bytes
        claimed, limit, most = pages.use(number)
        # A tenant that claims more than it can have would keep others off the card.
        return max(seen, min(claimed, most)), limit


def simulator_env(files: DriverFiles) -> dict[str, str]:
    """Return the variable by which a host process finds a simulated driver's device."""
    for mount in files.cdi.everything.mounts:
        if mount.container_path == SIMULATED_DEVICE:
            return {"GPUSHARE_SIM_DEVICE": mount.host_path}
    return {}
