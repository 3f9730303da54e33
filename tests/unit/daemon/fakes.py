# SPDX-License-Identifier: Apache-2.0
"""A driver that is a list, tenants' directories that are not mounted, and a node of both."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon.audit.truth import Truth
from gpushare.daemon.cards.calibration import Contexts
from gpushare.daemon.cards.card import NO_LIMITS, Card, DriverError, Generation, Limits, Sample, Use
from gpushare.daemon.cards.topology import NO_LINKS, Links
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.identity.sightings import Sightings
from gpushare.daemon.node import Loaded, Node
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.service.loop import Loop
from gpushare.daemon.service.watch import Watch
from gpushare.daemon.service.worker import Worker
from gpushare.daemon.store.doubt import Doubt
from gpushare.daemon.store.ledger import Entry, Holding, Ledger
from gpushare.daemon.store.overrides import Overrides
from gpushare.daemon.tenants import Tenants
from gpushare.oci import cdi
from gpushare.oci.driver import from_cdi
from gpushare.oci.platform import this_platform

GIB = 1 << 30
MIB = 1 << 20
PATIENCE_SECONDS = 20.0


def card(index: int = 0, gib: int = 140, model: str = "H200", *, datacenter: bool = True) -> Card:
    return Card(index, f"GPU-{index}000", model, gib * GIB, index, datacenter)


def entry(key: str = "0" * 16, memory_gib: int = 4, cores: int = 0, *, index: int = 0) -> Entry:
    holding = Holding(card(index).uuid, memory_gib * GIB, cores, cores)
    return Entry(key=key, state="reserved", id=f"id-{key[:4]}", name="train", holdings=(holding,))


class FakeDriver:
    driver_version = "580.65.06"
    cuda_version = "13.0"

    def __init__(self, *cards: Card) -> None:
        self._cards = cards or (card(),)
        self.uses: dict[str, tuple[Use, ...]] = {}
        self.during: Callable[[], None] = lambda: None
        self.fault = ""
        self.lost: frozenset[str] = frozenset()
        self.busy: dict[str, int] = {}  # percent of a card's time
        self.has_limits = False
        self.held: dict[tuple[str, Path], Limits] = {}
        self.refusal = ""  # of limits
        self.rounds_to = 1
        self.near = NO_LINKS
        self.renewed: list[Path] = []
        self.refuses_to_load = ""
        # The real one asks the kernel's module, which may be of another version than the file.
        self.version_of: Callable[[Path], str] = lambda file: file.name.partition(".so.")[2]
        self.parts: dict[str, tuple[str, ...]] = {}  # of a card under MIG
        self.loads = 0
        self.xids: tuple[tuple[str, int], ...] = ()

    @property
    def generation(self) -> Generation:
        cards = tuple((card.index, card.uuid) for card in self._cards)
        return Generation(self.driver_version, cards, tuple(self.parts.items()), self.loads)

    def renew(self, library: Path, env: Mapping[str, str]) -> None:
        del env
        if self.refuses_to_load:
            raise DriverError(self.refuses_to_load)
        self.renewed.append(library)
        self.driver_version = self.version_of(library)

    def cards(self) -> tuple[Card, ...]:
        return self._cards

    def links(self) -> Links:
        return self.near

    def sample(self) -> Sample:
        if self.fault:
            raise DriverError(self.fault)
        self.during()
        seen = {uuid for card in self._cards if (uuid := card.uuid) not in self.lost}
        uses = {uuid: self.uses.get(uuid, ()) for uuid in seen}
        lost = dict.fromkeys(self.lost, "GPU is lost")
        xids, self.xids = self.xids, ()
        return Sample(time.monotonic_ns(), uses, lost, self.busy, self.generation, xids)

    def set_limits(self, uuid: str, cgroup: Path, limits: Limits) -> None:
        if self.refusal and limits != NO_LIMITS:
            raise DriverError(self.refusal)
        if limits == NO_LIMITS:
            self.held.pop((uuid, cgroup), None)
        else:
            rounded = limits.hard_bytes // self.rounds_to * self.rounds_to
            self.held[uuid, cgroup] = Limits(limits.soft_bytes, rounded)

    def limits(self, uuid: str, cgroup: Path) -> Limits:
        return self.held.get((uuid, cgroup), NO_LIMITS)


class PlainDirectories(TenantMounts):
    """Tenants' directories without a tmpfs over them, which takes root."""

    def _enter(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)

    def _mount(self, target: Path, data: str) -> None:
        del target, data

    def _remove(self, key: str) -> None:
        shutil.rmtree(self.root / key, ignore_errors=True)


def driver_files(folder: Path) -> cdi.CdiSpec:
    """Return a CDI spec whose libraries are in `folder`."""
    names = ("libcuda.so.1", "libnvidia-ml.so.1")
    return cdi.from_document(
        {
            "cdiVersion": "0.6.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": name, "containerEdits": {}} for name in ("0", "1", "2")],
            "containerEdits": {
                "mounts": [
                    {"hostPath": f"{folder}/{name}", "containerPath": f"/usr/lib64/{name}"}
                    for name in names
                ]
            },
        }
    )


@contextmanager
def node(
    folder: Path, driver: FakeDriver | None = None, config: Config | None = None
) -> Iterator[Node]:
    """Yield a node under `folder`; nobody runs its loop, the decide thread runs."""
    config = replace(
        config or Config(),
        run_dir=folder / "run",
        state_dir=folder / "state",
        libraries=folder / "lib",
        docker_sockets=(),
    )
    for made in (config.run_dir, config.state_dir, config.libraries):
        made.mkdir(parents=True, exist_ok=True)
    driver = driver or FakeDriver()
    doubt = Doubt(config.run_dir / "doubt", "boot")
    is_first = not (config.run_dir / "tenants").exists()
    ledger = Ledger(config.run_dir / "ledger.db", "boot", doubt)
    if is_first:
        ledger.confirm()  # as a daemon does once it has looked who is there
    tenants, loop = Tenants(), Loop()
    contexts = Contexts(config.state_dir, driver.driver_version)
    truth = Truth(driver, ledger, tenants, foreign_half_life=60, learned=lambda *_: None)
    made_node = Node(
        config=config,
        platform=this_platform(),
        ledger=ledger,
        doubt=doubt,
        mounts=PlainDirectories(config.run_dir / "tenants"),
        overrides=Overrides(config.state_dir),
        card_overrides=Overrides(config.state_dir, "cards.json", "gpushare card"),
        tenants=tenants,
        loop=loop,
        watch=Watch(loop),
        decide=Worker("decide"),
        names=Worker("names"),
        driver=Loaded(from_cdi(driver_files(folder)), driver, driver.cards(), contexts, truth),
    )
    try:
        yield made_node
    finally:
        made_node.decide.finish(5)
        made_node.names.finish(5)
        loop._run_due()  # what would have been watched, had it run
        made_node.watch.close()
        for key in list(tenants.pages):
            tenants.remove(key)
        loop.close()
        ledger.close()


def all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every number that the driver lists be a process that goes on."""
    monkeypatch.setattr(Sightings, "_open", lambda _, pid: Process(pid, 1, 1, pid))


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; AssertionError when it does not in `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


def again(folder: Path) -> AbstractContextManager[Node]:
    """Return a node on what an earlier one left under `folder`: the daemon after a restart."""
    return node(folder)
