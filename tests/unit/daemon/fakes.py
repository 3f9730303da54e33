# SPDX-License-Identifier: Apache-2.0
"""A driver that is a list, tenants' directories that are not mounted, and a node of both."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from gpushare import abi, protocol
from gpushare.config import Config
from gpushare.daemon.audit.audit import Audit
from gpushare.daemon.cards.context_size import ContextSizes
from gpushare.daemon.cards.driver_client import (
    NO_LIMITS,
    DriverError,
    DriverGeneration,
    DriverLimits,
    DriverSample,
    ProcessUse,
)
from gpushare.daemon.cards.nvml_client import DriverDescription, Nvml
from gpushare.daemon.composition import build_node, compose
from gpushare.daemon.core.loop import Loop, T, Worker, WorkerPool
from gpushare.daemon.core.users import HostUsers
from gpushare.daemon.eviction.evictions import Evictions
from gpushare.daemon.freezer import Freezer
from gpushare.daemon.lifecycle.queue import Queue, RoomForStarts
from gpushare.daemon.limits import CardAccounts, MemoryLimits
from gpushare.daemon.node import LoadedDriver
from gpushare.daemon.observe.compute_usage import ComputeMeter
from gpushare.daemon.observe.sampler import UsageSampler
from gpushare.daemon.observed import Observations
from gpushare.daemon.operator.run_state import RunControl
from gpushare.daemon.pages.driver_params import DriverParams
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import ProcessWatch, TenantSocket
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.placement.model import Card
from gpushare.daemon.policy import FIXED
from gpushare.daemon.service.control_server import (
    BoundOperation,
    ControlRequest,
    Peer,
    find_operation,
)
from gpushare.daemon.service.operations import Operations
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.host import mounts
from gpushare.oci import cdi
from gpushare.oci.driver_files import from_cdi
from gpushare.oci.elf import this_platform
from gpushare.protocol.rows import CardSensors

from .fake_checkpoints import FakeCheckpoints
from .inline import InlinePool, InlineWorker, QuietLoop, SilentSocket, Turns, quick_sleeps

GIB = 1 << 30
MIB = 1 << 20
#: Whether nodes have the daemon's own threads and sockets: in tests/threads.
THREADED = False


def card(index: int = 0, gib: int = 140, model: str = "H200", *, datacenter: bool = True) -> Card:
    return Card(index, f"GPU-{index}000", model, gib * GIB, index, datacenter)


def entry(key: str = "0" * 16, memory_gib: int = 4, cores: int = 0) -> TenantRecord:
    allocation = CardAllocation(card().uuid, memory_gib * GIB, cores)
    return TenantRecord(
        key=key,
        state="reserved",
        id=f"id-{key[:4]}",
        name="train",
        policy=FIXED if cores else "",
        allocations=(allocation,),
    )


class FakeDriver(Nvml):
    """A driver that is a list: it has neither the thread nor the process of its base class."""

    driver_version = "580.65.06"
    has_limits = False

    def __init__(self, *cards: Card) -> None:
        self._cards = cards or (card(),)
        self.loaded = DriverDescription("", "13.0", (), DriverGeneration(), limits=False)
        self.uses: dict[str, tuple[ProcessUse, ...]] = {}
        self.during: Callable[[], None] = lambda: None
        self.fault = ""
        self.lost: frozenset[str] = frozenset()
        self.modes: dict[str, str] = {}  # a card's compute mode
        self.busy: dict[str, int] = {}  # percent of a card's time
        self.held: dict[tuple[str, Path], DriverLimits] = {}
        self.refusal = ""  # of limits
        self.rounds_to = 1
        self.renewed: list[Path] = []
        self.released = ""
        self.refuses_to_load = ""
        # The real one asks the kernel's module, which may be of another version than the file.
        self.version_of: Callable[[Path], str] = lambda file: file.name.partition(".so.")[2]
        self.parts: dict[str, tuple[str, ...]] = {}  # of a card under MIG
        self.loads = 0
        self.xids: tuple[tuple[str, int], ...] = ()
        self.sensors: dict[str, CardSensors] = {}

    @property
    def generation(self) -> DriverGeneration:
        cards = tuple((card.index, card.uuid) for card in self._cards)
        return DriverGeneration(self.driver_version, cards, tuple(self.parts.items()), self.loads)

    def renew(self, library: Path, env: Mapping[str, str]) -> None:
        del env
        if self.refuses_to_load:
            raise DriverError(self.refuses_to_load)
        self.renewed.append(library)
        self.driver_version = self.version_of(library)

    def release(self, why: str) -> None:
        self.released = why

    def cards(self) -> tuple[Card, ...]:
        return self._cards

    def figures(self) -> DriverSample:
        kept, self.xids = self.xids, ()
        sample = self.sample()
        self.xids = kept
        return sample

    def sample(self, *, brief: bool = False) -> DriverSample:
        del brief
        if self.fault:
            raise DriverError(self.fault)
        self.during()
        seen = {uuid for card in self._cards if (uuid := card.uuid) not in self.lost}
        uses = {uuid: self.uses.get(uuid, ()) for uuid in seen}
        lost = dict.fromkeys(self.lost, "GPU is lost")
        xids, self.xids = self.xids, ()
        now = time.monotonic_ns()
        return DriverSample(
            now,
            uses,
            lost,
            self.busy,
            self.generation,
            xids,
            compute_modes=self.modes,
            sensors=dict(self.sensors),
        )

    def set_limits(self, uuid: str, cgroup: Path, limits: DriverLimits) -> None:
        if self.refusal and limits != NO_LIMITS:
            raise DriverError(self.refusal)
        if limits == NO_LIMITS:
            self.held.pop((uuid, cgroup), None)
        else:
            rounded = limits.hard_bytes // self.rounds_to * self.rounds_to
            self.held[uuid, cgroup] = DriverLimits(limits.soft_bytes, rounded)

    def limits(self, uuid: str, cgroup: Path) -> DriverLimits:
        return self.held.get((uuid, cgroup), NO_LIMITS)


def row_of(row: Mapping[str, Any] | bytes) -> dict[str, Any]:
    """Return a row of an answer, which may be a packet already."""
    return protocol.decode(row)["row"] if isinstance(row, bytes) else dict(row)


@dataclass
class FakeDaemon(DaemonState):
    """The state, with what the daemon builds around it."""

    sampler: UsageSampler = field(init=False)
    meter: ComputeMeter = field(init=False)
    freezer: Freezer = field(init=False)
    audit: Audit = field(init=False)
    checkpoints: FakeCheckpoints = field(init=False)
    evictions: Evictions = field(init=False)
    tickets: Queue = field(init=False)

    def __post_init__(self) -> None:
        driver = self.node.loaded().nvml
        self.sampler = UsageSampler(
            driver,
            self.ledger,
            self.tenants,
            self.observed,
        )
        self.meter = ComputeMeter(self.ledger, self.tenants, self.observed)
        self.checkpoints = FakeCheckpoints()
        self.compose()

    def reopen_ledger(self) -> None:
        """Read the ledger again, as the next daemon does."""
        self.ledger.close()
        self.ledger = Ledger(self.ledger.folder, "boot")
        self.accounts = CardAccounts(self.node, self.ledger, self.observed, self.tenants)
        self.limits = MemoryLimits(self.accounts, self.decide)

    def compose(self) -> None:
        """Make its parts, which follow its ledger."""
        parts = compose(self, self.checkpoints)
        self.freezer, self.audit = parts.freezer, parts.audit
        self.evictions, self.tickets, self.servers = parts.evictions, parts.queue, parts.servers
        self.ledger.changed.listeners += parts.followers

    @property
    def driver(self) -> FakeDriver:
        found = self.node.loaded().nvml
        assert isinstance(found, FakeDriver)
        return found

    @property
    def room(self) -> RoomForStarts:
        return RoomForStarts(self.evictions, self.tickets)

    @property
    def operations(self) -> Mapping[str, BoundOperation]:
        control = RunControl(self, self.freezer, self.audit, self.servers)
        return Operations(self, control, self.evictions, self.tickets, self.servers).bound()

    def ask(self, op: str, uid: int = 0, fds: tuple[int, ...] = (), **fields: Any) -> Any:
        """Return what an operation answers: its rows, or else what is beside them."""
        request = ControlRequest({"op": op, **fields}, Peer(os.getpid(), uid), fds)
        rows, rest = find_operation(request, self.operations).run(request)
        return [*map(row_of, rows)] or dict(rest)


class _RunAtOnce(threading.Thread):
    """A thread that is done once it has started."""

    def start(self) -> None:
        self.run()


class PlainDirectories(TenantMounts):
    """Tenants' directories without a tmpfs over them, which takes root, and without a thread."""

    def __init__(self, root: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading, "Thread", _RunAtOnce)
            super().__init__(root)

    def _serve(self) -> None:
        self._entered.run()

    def _ask(self, function: Callable[[], T]) -> T:
        return function()

    def _enter(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)

    def _mount(self, target: Path, data: str) -> None:
        del target, data

    def _remove(self, key: str) -> None:
        shutil.rmtree(self.root / key, ignore_errors=True)

    def shared_memory(self, path: Path) -> int:
        return mounts.clone(path)

    def drop_shared_memory(self, path: Path) -> None:
        shutil.rmtree(path)

    def library_tree(self, top: str, files: Mapping[str, str]) -> Path:
        del top, files
        raise PermissionError(errno.EPERM, "mount")


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


def _listen(key: str, directory: int) -> TenantSocket:
    """Return a socket that nobody can connect to."""
    with suppress(FileNotFoundError):
        os.unlink(abi.SOCKET_NAME, dir_fd=directory)
    os.mknod(abi.SOCKET_NAME, stat.S_IFSOCK, dir_fd=directory)
    os.chmod(abi.SOCKET_NAME, 0o666, dir_fd=directory)
    return TenantSocket(key, cast("socket.socket", SilentSocket()))


#: Of the nodes that the test has made.
_turns: list[Turns] = []


def without_threads(patch: pytest.MonkeyPatch) -> None:
    """Let daemons sleep no time, and listen where nobody can connect, until `patch` is undone.

    It is the test's own, which may patch the same: so all is undone in its order.
    """
    _turns.clear()
    quick_sleeps(_turns, patch)
    patch.setattr(TenantSocket, "listen", _listen)
    if os.getuid() != 0:
        patch.setattr(os, "chown", lambda *_, **__: None)
        patch.setattr(os, "fchown", lambda *_: None)


@contextmanager
def node(
    folder: Path,
    driver: FakeDriver | None = None,
    config: Config | None = None,
    *,
    threaded: bool | None = None,
) -> Iterator[FakeDaemon]:
    """Yield a node under `folder`; its loop does not run, its workers do in the test's thread."""
    config = replace(
        config or Config(),
        run_dir=folder / "run",
        state_dir=folder / "state",
        libraries=folder / "lib",
        cdi_dir=folder / "cdi",
        docker_sockets=(),
    )
    for made in (config.run_dir, config.state_dir, config.libraries):
        made.mkdir(parents=True, exist_ok=True)
    driver = driver or FakeDriver()
    threaded = THREADED if threaded is None else threaded
    is_first = not (config.run_dir / "tenants").exists()
    ledger = Ledger(config.run_dir / "ledger", "boot")
    if is_first:
        ledger.confirm()  # as a daemon does once it has looked for its tenants
    observed, tenants = Observations(), Tenants()
    loop = Loop() if threaded else QuietLoop()
    worker: Callable[[str], Worker] = Worker
    pool: Callable[[str, int], WorkerPool] = WorkerPool
    if not threaded:
        turns = Turns()
        _turns.append(turns)
        worker, pool = partial(InlineWorker, turns), partial(InlinePool, turns)
    contexts = ContextSizes(config.state_dir, driver.driver_version)
    machine = build_node(config, this_platform())
    # Each uid that the host has no account for is a user.
    machine.users = HostUsers(
        folder / "etc", lambda uid, _: frozenset({str(uid)}), lambda job: job()
    )
    machine.driver = LoadedDriver(from_cdi(driver_files(folder)), driver, driver.cards(), contexts)
    accounts, decide = CardAccounts(machine, ledger, observed, tenants), worker("decide")
    made_node = FakeDaemon(
        node=machine,
        ledger=ledger,
        observed=observed,
        accounts=accounts,
        limits=MemoryLimits(accounts, decide),
        mounts=PlainDirectories(config.run_dir / "tenants"),
        params=DriverParams(config.run_dir / "driver-params", folder / "params"),
        tenants=tenants,
        loop=loop,
        watch=ProcessWatch(loop),
        decide=decide,
        creates=pool("create", 4),
        requests=pool("request", 4),
        freezing=worker("freeze"),
        names=worker("names"),
        evict=worker("evict"),
    )
    try:
        yield made_node
    finally:
        made_node.evictions.close(5)
        ending = made_node
        for one in (ending.creates, ending.requests, ending.freezing, ending.decide, ending.names):
            one.finish(5)
        loop._run_due()  # what would have been watched, had it run
        made_node.watch.close()
        for key in list(tenants.pages):
            tenants.remove(key)
        loop.close()
        ledger.close()


def no_space(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def again(folder: Path) -> AbstractContextManager[FakeDaemon]:
    """Return a node on what an earlier one left under `folder`: the daemon after a restart."""
    return node(folder)
