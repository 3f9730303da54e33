# SPDX-License-Identifier: Apache-2.0
"""The machine: its configuration, its driver with the cards, and what operators set for them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.config import Config
from gpushare.daemon.cards.context_size import ContextSizes
from gpushare.daemon.cards.nvml_client import Nvml
from gpushare.daemon.core.loop import Signal
from gpushare.daemon.core.users import HostUsers
from gpushare.daemon.engine_libraries import EngineLibraries
from gpushare.daemon.placement.model import Card, Links
from gpushare.daemon.policy import CHOICES, Choice
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.oci.bounded_read import replace_file
from gpushare.oci.driver_files import DriverFiles, simulator_env
from gpushare.oci.elf import Platform
from gpushare.quota.keys import KEYS, OPERATORS, read
from gpushare.quota.node_settings import NODE_SETTINGS
from gpushare.quota.request import ValueSource
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
        return self.nvml.loaded.links

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


# --- the cards in MPS mode: what mps/supervisor.py publishes of their control daemons ---

#: Where a client finds its MPS server.
PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"


class MpsRefused(UserError):
    """A container cannot become a client of the card's MPS server."""


@dataclass(frozen=True)
class MpsGrant:
    """The part of one tenant in the MPS server of its card."""

    folder: str  # on the host, with the socket of clients
    shared_memory: str  # the folder that server and client share at /dev/shm
    uid: int  # of its first process, the host's
    percentage: int  # its ceiling of the card's multiprocessors; 100: none
    variables: Mapping[str, str]  # for its processes
    note: str = ""  # how its request was changed


@dataclass(frozen=True)
class MpsCardState:
    """The control daemon of one card."""

    fault: str = ""  # why no container can join; "": they can
    server_state: str = ""  # as NVIDIA names it; "": no server runs
    # By tenant:
    grants: Mapping[str, MpsGrant] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)  # why it has to start again
    bypasses: Mapping[str, int] = field(default_factory=dict)  # a process that is no client


@dataclass
class MpsCards:
    """All cards in MPS mode, by UUID; `cards` is replaced, never changed.

    `bypassed` is with a tenant that uses the card without the server, and its process.
    """

    cards: Mapping[str, MpsCardState] = field(default_factory=dict)
    bypassed: Signal[[str, int]] = field(default_factory=Signal)

    def fault_of(self, uuid: str) -> str:
        """Return why no container can be a client of a card's server; "" if they can."""
        return self.cards.get(uuid, MpsCardState()).fault

    def bypass_of(self, key: str) -> int:
        """Return a process of a tenant that uses the card without the server, 0 if none does."""
        return next((card.bypasses[key] for card in self.cards.values() if key in card.bypasses), 0)

    def loss_of(self, key: str) -> str:
        """Return why a tenant's processes can no longer use the card, "" if they can."""
        return next((card.losses[key] for card in self.cards.values() if key in card.losses), "")

    def grant_of(self, key: str) -> MpsGrant | None:
        """Return what a tenant has of a server, None if it has none."""
        grants = (card.grants.get(key) for card in self.cards.values())
        return next((grant for grant in grants if grant is not None), None)


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
    remote: Mapping[str, EngineLibraries] = field(default_factory=dict)  # by the engine's name
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


# --- the operator's settings of a container, a card or the node: they hold across a reboot ---
#
# One JSON file in state_dir, `{"<id>": {"memory": "6GiB"}}`, by the container's id, the card's UUID
# or the label of the node, and replaced by rename and synced: it is the operator's word and
# outlives everything else. gpushared does not start with a file that is damaged, or was edited into
# an invalid one.


_KNOWN: Final = {**KEYS, **OPERATORS, **NODE_SETTINGS}
_MOST: Final = 4096  # containers; the oldest is forgotten
#: Of a card: why nothing new is to be placed on it, in the operator's own words; empty: no reason.
CORDONED: Final = "cordoned"


class OverridesError(UserError):
    """The operator's settings cannot be read; going on would silently undo them."""


class Overrides:
    """The file `name` in `directory`, kept in memory; the decide thread's.

    OverridesError: the file cannot be read.
    """

    def __init__(self, directory: Path, name: str = "overrides.json") -> None:
        self._file = directory / name
        self._values = _load(self._file)

    def of(self, identity: str) -> Mapping[str, str]:
        """Return what was set for `identity`, by canonical key."""
        return self._values.get(identity, {})

    def all(self) -> Mapping[str, Mapping[str, str]]:
        """Return what was set, by identity; the latest is the last."""
        return self._values

    def set(self, identity: str, settings: Mapping[str, str]) -> None:
        """Note `settings`, by canonical key, for `identity`; OSError when the disk fails."""
        values = {name: dict(keys) for name, keys in self._values.items()}
        values[identity] = {**values.pop(identity, {}), **settings}
        while len(values) > _MOST:
            del values[next(iter(values))]
        self._keep(values)

    def forget(self, identity: str, *keys: str) -> None:
        """Note that `keys` are not set for `identity` any more; OSError when the disk fails."""
        kept = {name: text for name, text in self.of(identity).items() if name not in keys}
        if kept == self.of(identity):
            return
        values = {name: keys for name, keys in self._values.items() if name != identity}
        if kept:
            values[identity] = kept
        self._keep(values)

    def _keep(self, values: dict[str, dict[str, str]]) -> None:
        content = json.dumps(values, indent=1) + "\n"
        replace_file(self._file, content.encode(), 0o600, synced=True)
        self._values = values


def _load(file: Path) -> dict[str, dict[str, str]]:
    """Return what is in `file`, which may be missing; OverridesError."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OverridesError(f"{file}: {error.strerror}") from error
    try:
        return {str(name): _checked(keys) for name, keys in json.loads(text).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise OverridesError(
            f"{file} is damaged ({why}): it stores settings of the operator. Correct it, or remove "
            "it to continue without them"
        ) from error


def _checked(keys: Mapping[str, object]) -> dict[str, str]:
    """Return what was set for one id; ValueError for what no command of ours has written."""
    checked = {str(key): str(value) for key, value in keys.items()}
    for key, text in checked.items():
        if key != CORDONED:
            read(key, ValueSource("operator", key), text, _KNOWN)
    return checked
