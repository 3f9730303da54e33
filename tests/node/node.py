# SPDX-License-Identifier: Apache-2.0
"""One daemon: the state that gpushared builds, with a clock and workers that run when it is told.

It is spoken to through operations only, as by a client of the control socket. Only the driver, the
mounts and the evictions' worker are replaced, because they need a card, root and a process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gpushare import config as configuration
from gpushare.daemon.cards.context_size import ContextSizes
from gpushare.daemon.composition import build_state, compose
from gpushare.daemon.core.loop import DaemonClock, Loop
from gpushare.daemon.lifecycle import release
from gpushare.daemon.node import LoadedDriver
from gpushare.daemon.service.control_server import ControlRequest, Peer, find_operation
from gpushare.daemon.state import DaemonState, Threads
from gpushare.oci.driver_files import from_cdi
from tests.unit.daemon import fakes
from tests.unit.daemon.fake_checkpoints import FakeCheckpoints
from tests.unit.daemon.inline import InlinePool, InlineWorker, Turns

ROOT = Peer(os.getpid(), 0)
FOLDERS = {"run_dir": "run", "state_dir": "state", "library_dir": "lib"}


@dataclass
class Hands:
    """A clock that stands until it is moved."""

    seconds: float = 0.0

    def wall(self) -> float:
        """Seconds since the epoch."""
        return 1_800_000_000.0 + self.seconds

    def boot(self) -> float:
        """Seconds since the boot."""
        return 100_000.0 + self.seconds


class StoryNode:
    """A daemon, and what a story asks of it."""

    def __init__(self, state: DaemonState, turns: Turns, hands: Hands) -> None:
        self._state, self._turns, self._hands = state, turns, hands
        parts = compose(state, FakeCheckpoints())
        self._operations = parts.operations
        self._names: dict[str, tuple[str, str]] = {}  # key and id of a tenant, by its name
        release.adopt_tenants(state, parts.freezer)
        parts.queue.look()
        state.ledger.changed.listeners += parts.followers
        parts.look_again(state.loop)
        self.settle()

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Return what the operation answers beside its rows, which are in `rows`."""
        request = ControlRequest({"op": op, **fields}, ROOT)
        rows, rest = find_operation(request, self._operations).run(request)
        answer = {**rest, "rows": [*map(fakes.row_of, rows)]}
        self.settle()
        return answer

    def settle(self) -> None:
        """Run what operations have left to the workers and to the loop."""
        with self._turns.turn():
            self._state.loop.settle()
        self._state.loop.settle()

    def wait(self, seconds: float) -> None:
        """Have so many seconds pass, one after another, with what is due in each."""
        for _ in range(round(seconds)):
            self._hands.seconds += 1.0
            self._state.loop._run_due()
            self.settle()

    def uuid(self, card: int) -> str:
        """Return the UUID of a card."""
        return self._state.node.loaded().cards[card].uuid

    # --- what a story says ---

    def configures(self, **sections: Any) -> None:
        """The operator writes gpushare.yaml with these sections, and has it read again."""
        file = self._state.node.config.file
        assert file is not None
        _write_configuration(file, sections)
        self.ask("reload")

    def opens(self, name: str, memory: str, *, ticket: str = "", **quota: str) -> None:
        """`gpushare run` gets its quota."""
        keys = {key.replace("_", "-"): value for key, value in quota.items()}
        shown = {"ticket": ticket} if ticket else {}
        grant = self.ask("open", name=name, quota={"memory": memory, **keys}, **shown)
        self._names[name] = grant["key"], grant["id"]

    def takes(self, name: str, memory: str, wait_seconds: int = 0) -> Start:
        """`gpushare run --wait` joins the queue."""
        ticket = self.ask(
            "queue-take",
            kind="command",
            name=name,
            wait_seconds=wait_seconds,
            quota={"memory": memory},
        )
        return Start(self, name, memory, ticket["ticket"], ticket["secret"])

    def ends(self, name: str) -> None:
        """Its reservation is given back."""
        key, identity = self._names.pop(name)
        self.ask("release", key=key, id=identity)


class Start:
    """A start that is, or was, in the queue."""

    def __init__(self, node: StoryNode, name: str, memory: str, ticket: str, secret: str) -> None:
        self._node, self._name, self._memory = node, name, memory
        self._ticket, self._secret = ticket, secret

    def after_restart(self, node: StoryNode) -> Start:
        """Return the same start, of a client that has found the next daemon."""
        return Start(node, self._name, self._memory, self._ticket, self._secret)

    @property
    def status(self) -> dict[str, Any]:
        """What `queue-poll` answers."""
        return self._node.ask("queue-poll", ticket=self._ticket, secret=self._secret)

    def waits(self, position: int = 1) -> bool:
        """Whether it waits, at that place."""
        status = self.status
        return bool(status["state"] == "waiting" and status["position"] == position)

    @property
    def is_granted(self) -> bool:
        """Whether room is reserved for it."""
        return bool(self.status["state"] == "granted")

    @property
    def end(self) -> str:
        """Why it is no longer in the queue; "" while it is."""
        status = self.status
        return str(status["reason"]) if status["state"] == "ended" else ""

    def cancel(self) -> str:
        """`gpushare queue cancel`; return whom the answer names."""
        return str(self._node.ask("queue-cancel", ticket=self._ticket)["name"])

    def starts(self) -> None:
        """It takes over what it was granted."""
        self._node.opens(self._name, self._memory, ticket=self._secret)


def _write_configuration(file: Path, sections: Mapping[str, Any]) -> None:
    folder = file.parent
    paths = {name: str(folder / place) for name, place in FOLDERS.items()}
    plain = {**paths, "engines": {"sockets": []}, "kubernetes": {"cdi_dir": str(folder / "cdi")}}
    file.write_text(yaml.safe_dump({**plain, **sections}))


@contextmanager
def node(folder: Path, *, gib: int = 80, cards: int = 1) -> Iterator[StoryNode]:
    """Yield a node on what an earlier one has left under `folder`."""
    turns, hands = Turns(), Hands()
    loop = Loop(lambda: hands.seconds)
    file = folder / "gpushare.yaml"
    if not file.exists():
        _write_configuration(file, {})
    config = configuration.load(file)
    is_first = not config.run_dir.exists()
    for place in (config.run_dir, config.state_dir, config.libraries):
        place.mkdir(parents=True, exist_ok=True)
    threads = Threads(
        decide=InlineWorker(turns, "decide"),
        creates=InlinePool(turns, "create", 1),
        requests=InlinePool(turns, "request", 1),
        freezing=InlineWorker(turns, "freeze"),
        names=InlineWorker(turns, "names"),
        evict=InlineWorker(turns, "evict"),
    )
    mounts = fakes.PlainDirectories(config.run_dir / "tenants")
    state = build_state(config, loop, threads, mounts)
    state = replace(state, clock=DaemonClock(hands.wall, hands.boot))
    if is_first:
        state.ledger.confirm()  # as gpushared does once it has looked for its tenants
    driver = fakes.FakeDriver(*(fakes.card(index, gib) for index in range(cards)))
    contexts = ContextSizes(config.state_dir, driver.driver_version)
    files = from_cdi(fakes.driver_files(folder))
    state.node.driver = LoadedDriver(files, driver, driver.cards(), contexts)
    try:
        yield StoryNode(state, turns, hands)
    finally:
        state.watch.close()
        state.mounts.close()
        for key in list(state.tenants.pages):
            state.tenants.remove(key)
        loop.close()
        state.ledger.close()
