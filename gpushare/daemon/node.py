# SPDX-License-Identifier: Apache-2.0
"""The machine: its configuration, its driver with the cards, and what operators set for them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.config import Config
from gpushare.daemon.cards.context_size import ContextSizes
from gpushare.daemon.cards.mps_state import MpsCards
from gpushare.daemon.cards.nvml_client import Nvml
from gpushare.daemon.core.users import HostUsers
from gpushare.daemon.placement.model import Card, Links
from gpushare.daemon.policy import CHOICES, Choice
from gpushare.daemon.store.overrides import Overrides
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.oci.driver_files import DriverFiles, simulator_env
from gpushare.oci.elf import Platform
from gpushare.settings import INTERPOSER, CardRule


class NoDriver(UserError):
    """This machine has no NVIDIA driver that could be loaded, and something needs it."""


@dataclass(frozen=True)
class LoadedDriver:
    """A driver that answers: its files (CDI), its NVML and its cards."""

    files: DriverFiles
    nvml: Nvml
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
        """The variables by which a host process finds the device of a simulated driver, a file."""
        return simulator_env(self.files)

    def card(self, uuid: str) -> Card | None:
        """Return the card with that uuid, None when it is gone."""
        return next((card for card in self.cards if card.uuid == uuid), None)


@dataclass
class Node:
    """The machine. Without a `driver`, `no_driver_reason` says why."""

    config: Config
    platform: Platform
    overrides: Overrides  # what operators set for containers, by settings_key of a record
    card_overrides: Overrides  # by the card's uuid
    labels: Overrides  # settings of the node, by the label that sets them
    driver: LoadedDriver | None = None
    no_driver_reason: str = ""
    fingerprint: object = None  # driver_fingerprint() of the driver as it was last taken over
    driver_fault: str = ""  # why the driver, which was loaded, can no longer be used for containers
    config_fault: str = ""  # why the current file was rejected
    scheduler_pid: int = 0  # the process that enforces compute shares; 0: none
    scheduler_fault: str = ""  # why not, or for which tenant not
    mps: MpsCards = field(default_factory=MpsCards)
    users: HostUsers = field(default_factory=HostUsers)
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

    @property
    def host_libraries(self) -> Path:
        """The folder of the interposer libraries for processes of the host."""
        return self.libraries / "host"

    def loaded(self) -> LoadedDriver:
        """Return the driver; NoDriver where there is none."""
        if self.driver is None:
            raise NoDriver(f"{self.no_driver_reason}; see gpushare doctor")
        return self.driver

    def card(self, uuid: str) -> Card | None:
        """Return the card with that uuid; None where it, or the driver, is gone."""
        return None if self.driver is None else self.driver.card(uuid)

    def policy_of(self, uuid: str) -> str:
        """Return the policy that the operator set for a card, "" if none is set."""
        return self.card_overrides.of(uuid).get("policy", "")

    def rule_of(self, card: Card, config: Config | None = None) -> CardRule:
        """Return what this or another `config` says of a card."""
        return (config or self.config).rule_of(card.index, card.uuid, card.model)

    def backend_of(self, card: Card, config: Config | None = None) -> str:
        """Return the backend of a card's shares, by this or another `config`: interposer or mps."""
        rule = self.rule_of(card, config)
        return INTERPOSER if card.instance or card.is_divided else rule.backend

    def over_quota_action(self, record: TenantRecord) -> Choice:
        """Return how far the audit goes with a tenant: as the operator set for it, or for all."""
        chosen = self.overrides.of(record.settings_key).get("over-quota-action")
        chosen = chosen or self.config.terms_of(record.namespace).over
        return next(choice for choice in CHOICES if choice == chosen)
