# SPDX-License-Identifier: Apache-2.0
"""Random evictions of real containers: every byte is where it was, and what gpushare itself takes.

A hundred sequences of evict, restore, move, kill, out of memory and a daemon that is killed. After
each, the contents of each container's memory are looked at, and the ledger is compared with what
the driver says. tests/system/test_evict_random.py runs fewer.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from gpushare.client import Client, DaemonError, DaemonUnreachable, RequestRefused, UnknownTenant
from gpushare.protocol.rows import TenantStatus
from gpushare.verify.runners import ProbeFailed, ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

from .result import Result
from .turns import BenchError

SEQUENCES = 100
STEPS = 6
MOST = 5
GIB = 1 << 30
MIB = 1 << 20
#: Of the containers: five of them do not fit on two cards of 140 GiB.
QUOTA = "60GiB"
EVICTION_MS, RESTORE_MS = 5.0, 20.0
_GONE = (RequestRefused, UnknownTenant, DaemonUnreachable, DaemonError)


@dataclass
class Survivor:
    """A container, and what its memory contains."""

    bundle: Bundle
    tenant: ProbeTenant
    seed: int


@dataclass
class Sequences:
    """Containers on two cards, and what is done to them."""

    stack: Stack
    chance: random.Random
    running: list[Survivor] = field(default_factory=list)
    checked: int = 0
    steps: dict[str, int] = field(default_factory=dict)

    @property
    def client(self) -> Client:
        return self.stack.client

    def run(self) -> None:
        """One sequence, and a look at all that is left."""
        steps: list[Callable[[], None]] = [self.start, self.evict, self.evict, self.restore]
        steps += [self.move, self.touch, self.kill, self.out_of_memory, self.restart]
        for _ in range(STEPS):
            step = self.chance.choice(steps)
            self.steps[step.__name__] = self.steps.get(step.__name__, 0) + 1
            step()
        self.check()

    def start(self) -> None:
        if len(self.running) == MOST:
            return
        kind = self.chance.choice(("online", "offline"))
        bundle = Bundle(self.stack, quota={"memory": QUOTA, "class": kind})
        tenant = bundle.run()
        try:
            started = tenant.start()["code"] == 0
        except ProbeFailed:
            started = False  # it had no room
        if not started:
            tenant.__exit__(None, None, None)
            bundle.remove()
            return
        survivor = Survivor(bundle, tenant, self.chance.randrange(1, 1 << 30))
        self._succeeds(survivor, f"alloc {self.chance.choice((1, 8, 24)) * MIB}")
        self._succeeds(survivor, f"write {survivor.seed}")
        self.running.append(survivor)

    def evict(self) -> None:
        hold = self.chance.random() < 0.3
        self._ask(lambda one: self.client.evict(one.bundle.id, hold=hold))

    def restore(self) -> None:
        self._ask(lambda one: self.client.restore(one.bundle.id))

    def move(self) -> None:
        card = self.chance.choice("01")
        self._ask(lambda one: self.client.move(one.bundle.id, card))

    def touch(self) -> None:
        """Look at the contents of one that is not held, which may have to wait."""
        if self.running:
            self._look(self.chance.choice(self.running))

    def kill(self) -> None:
        if self.running and self.chance.random() < 0.5:
            self._end(self.running.pop(self.chance.randrange(len(self.running))))

    def out_of_memory(self) -> None:
        """Have one ask for more than its quota: it is refused, and keeps what it has."""
        if not self.running:
            return
        survivor = self.chance.choice(self.running)
        if self._row(survivor)["eviction"] is None:
            answer = survivor.tenant.ask(f"alloc {61 * GIB}")
            if answer["code"] == 0:
                raise BenchError(f"{survivor.bundle.id} has more than its quota")

    def restart(self) -> None:
        """Kill gpushared, sometimes in the middle of a step, and start another one."""
        during = self.chance.choice((None, self.evict, self.restore, self.move))
        step = threading.Thread(target=during or (lambda: None))
        step.start()
        time.sleep(self.chance.random() * 0.03)
        self.stack.end_daemon()
        step.join()
        self.stack.start_daemon()
        self._settled()

    def check(self) -> None:
        """Raise BenchError for a byte, or an allocation, that is not as it should be."""
        self._settled()
        for survivor in self.running:
            with suppress(*_GONE):
                self.client.restore(survivor.bundle.id)
            self._look(survivor)
        self._compare_ledger()

    def close(self) -> None:
        """Look at all once more, each as soon as it has room, and end them."""
        while self.running:
            self.check()
            self._end(self.running.pop())

    def abandon(self) -> None:
        """End all that is left, whatever state it is in."""
        for survivor in self.running:
            _stop(survivor)

    def _ask(self, step: Callable[[Survivor], object]) -> None:
        if self.running:
            with suppress(*_GONE):
                step(self.chance.choice(self.running))

    def _row(self, survivor: Survivor) -> TenantStatus:
        return self.client.tenant(survivor.bundle.id)

    def _look(self, survivor: Survivor) -> None:
        """Compare the contents of a container whose memory is on a card."""
        if self._row(survivor)["eviction"] is not None:
            return
        answer = survivor.tenant.ask(f"check {survivor.seed}")
        if answer["code"] or answer["different"]:
            raise BenchError(f"{survivor.bundle.id}: {answer}")
        self.checked += 1

    def _settled(self) -> None:
        """Wait until no step is in progress."""
        wait_until(
            lambda: all(
                one["eviction"] is None or one["eviction"]["state"] in {"evicted", "failed"}
                for one in self.client.tenants()
            )
        )

    def _compare_ledger(self) -> None:
        """Each card has allocated what its containers have, and the driver lists no others."""
        rows = self.client.tenants()
        if any(one["eviction"] and one["eviction"]["state"] == "failed" for one in rows):
            raise BenchError("a container is in state failed, and nothing has failed")
        for card in self.client.cards():
            held = [
                one
                for one in rows
                if one["eviction"] is None and one["cards"][0]["uuid"] == card["uuid"]
            ]
            if card["allocated_bytes"] != len(held) * 60 * GIB:
                raise BenchError(
                    f"card {card['index']}: {card['allocated_bytes']} bytes of {len(held)}"
                )

    def _succeeds(self, survivor: Survivor, command: str) -> None:
        answer = survivor.tenant.ask(command)
        if answer["code"]:
            raise BenchError(f"{survivor.bundle.id}: {command}: {answer}")

    def _end(self, survivor: Survivor) -> None:
        _stop(survivor)
        wait_until(lambda: survivor.bundle.row() is None)

    def own_milliseconds(self) -> dict[str, list[float]]:
        """Return what each eviction and restore took beside the driver, by event."""
        found: dict[str, list[float]] = {"tenant-evicted": [], "tenant-restored": []}
        for event in self.client.history("", time.time() - 3600):
            if event["event"] in found:
                fields = event["fields"]
                own = 1000 * (fields["seconds"] - fields["driver_seconds"])
                found[event["event"]].append(own)
        return found


def _stop(survivor: Survivor) -> None:
    survivor.bundle.call("kill", "KILL")
    survivor.tenant.__exit__(None, None, None)
    survivor.bundle.remove()


def sequences(seed: int, count: int, opened: ExitStack) -> Sequences:
    """Return `count` sequences on a stack of two cards that was made for them, all done."""
    stack = opened.enter_context(Stack(cards=2))
    evict = {"offline": True, "moves": True, "min_resident": "1s"}
    stack.configure(evict=evict, timing={"reconcile_interval_seconds": 0.2})
    stack.start_daemon()
    made = Sequences(stack, random.Random(seed))
    opened.callback(made.abandon)
    for _ in range(count):
        made.run()
    return made


def measure() -> Iterator[Result]:
    """Run them all, and compare what gpushare took with the driver's own time."""
    seed = int(os.environ.get("GPUSHARE_BENCH_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"bench: evict: seed {seed}")
    with ExitStack() as opened:
        made = sequences(seed, SEQUENCES, opened)
        own = made.own_milliseconds()
        made.close()
        print(f"bench: evict: contents compared {made.checked} times; steps: {made.steps}")
    for event, name, budget in (
        ("tenant-evicted", "deciding and locking of an eviction, beside the driver", EVICTION_MS),
        ("tenant-restored", "reserving and unlocking of a restore, beside the driver", RESTORE_MS),
    ):
        if not own[event]:
            raise BenchError(f"no {event} in {SEQUENCES} sequences")
        value = statistics.median(own[event])
        yield Result(name, "ms", value, value, value, budget, absolute=True)
