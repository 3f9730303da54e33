# SPDX-License-Identifier: Apache-2.0
"""What tenants run."""

import itertools
import math
import random
from collections.abc import Callable, Iterator

from tools.model.clock import MS, SECOND, US
from tools.model.hardware import Meeting
from tools.model.tenant import KernelSequence, Launch, Note, Program, Sleep, Step, Sync, Thread

KERNELS = 2048  # different ones, then the same again
FOREVER = 1 << 60
# From the end of work to the thread that synchronised: if it polls, which is CUDA's default, and if
# it sleeps until the driver wakes it up (CU_CTX_SCHED_BLOCKING_SYNC).
POLLS_NS = (2 * US, 10 * US)
SLEEPS_NS = (20 * US, 60 * US)


def kernels(
    median_ns: int, *, sigma: float = 0.8, least: int = 0, most: int = 0, error: float = 0.2,
    seed: int = 0,
) -> KernelSequence:  # fmt: skip
    """Lognormal durations; they are estimated with a lognormal error of `error`."""
    chance = random.Random(f"{median_ns} {sigma} {seed}")
    most = most or 20 * median_ns
    ns = [
        min(most, max(least or 3 * US, int(median_ns * math.exp(chance.gauss(0, sigma)))))
        for _ in range(KERNELS)
    ]
    return KernelSequence(ns, [max(1, int(each * math.exp(chance.gauss(0, error)))) for each in ns])


def training(
    median_ns: int, *, sigma: float = 0.8, least: int = 0, per: int = 200, gap_ns: int = 300 * US,
    seed: int = 0,
) -> Program:  # fmt: skip
    """Iterations of `per` kernels, each followed by a pause."""

    def program(thread: Thread) -> Iterator[Step]:
        mine = kernels(median_ns, sigma=sigma, least=least, seed=seed + _number(thread))
        while True:
            yield Launch(mine, per)
            yield Sync()
            if gap_ns:
                yield Sleep(gap_ns)

    return program


def synchronising(
    median_ns: int,
    depth: int,
    *,
    wake_ns: tuple[int, int] = POLLS_NS,
    sigma: float = 0.3,
    host_ns: int = 10 * US,
    seed: int = 0,
) -> Program:
    """Batches of `depth` kernels, each waited for: the thread is late, and has to do then."""

    def program(thread: Thread) -> Iterator[Step]:
        chance = random.Random(f"{median_ns} {depth} {seed} {_number(thread)}")
        mine = kernels(median_ns, sigma=sigma, seed=seed + _number(thread))
        while True:
            yield Launch(mine, depth)
            yield Sync()
            yield Sleep(chance.randint(*wake_ns) + host_ns)

    return program


def inference(rate: float, *, count: int = 60, median_ns: int = 50 * US) -> Program:
    """Requests that come `rate` times a second, by chance; how long each takes is noted."""

    def program(thread: Thread) -> Iterator[Step]:
        chance = random.Random(7 + _number(thread))
        mine = kernels(median_ns, sigma=0.5, least=10 * US, most=400 * US)
        comes = 0.0
        while True:
            comes += chance.expovariate(rate) * SECOND
            now = thread.clock.now
            if comes > now:
                yield Sleep(int(comes) - now)
            came = int(comes)
            yield Launch(mine, count)
            yield Sync()
            yield Note(_since(thread, came))

    return program


def on_and_off(inner: Program, on_ns: int, off_ns: int) -> Program:
    """`inner` for a while, then nothing; how long the first piece waits is noted."""

    def program(thread: Thread) -> Iterator[Step]:
        steps = inner(thread)
        first = kernels(10 * US, sigma=0.1)
        while True:
            came = thread.clock.now
            yield Launch(first, 1)
            yield Note(_since(thread, came))
            while thread.clock.now < came + on_ns:
                yield next(steps)
            yield Sync()
            yield Sleep(off_ns)

    return program


def idle(thread: Thread) -> Iterator[Step]:
    """Nothing."""
    del thread
    yield Sleep(FOREVER)


def persistent(ns: int = FOREVER, *, after_ns: int = 0) -> Program:
    """One kernel without an end that was taken for a short one."""

    def program(thread: Thread) -> Iterator[Step]:
        del thread
        yield Sleep(after_ns)
        yield Launch(KernelSequence([ns], [100 * US]), 1)
        yield Sync()

    return program


def all_reduce(cards: int, *, median_ns: int = 200 * US, per: int = 20, ns: int = MS) -> Program:
    """A process for each card: work, then a collective of all of them, over and over."""

    def program(thread: Thread) -> Iterator[Step]:
        card, meetings = thread.number, thread.tenant.meetings
        mine = kernels(median_ns, sigma=0.3, seed=card)
        for iteration in itertools.count():
            yield Launch(mine, per, card)
            meeting = meetings.setdefault(iteration, Meeting(cards, ns))
            meetings.pop(iteration - 2, None)
            yield Launch(KernelSequence([ns], [ns]), 1, card, meeting)
            yield Sync()
            if card == 0:
                yield Note(thread.tenant.latencies.append)

    return program


def _since(thread: Thread, came: int) -> Callable[[int], None]:
    return lambda now: thread.tenant.latencies.append(now - came)


def _number(thread: Thread) -> int:
    """By which the processes of a run differ."""
    return sum(map(ord, thread.tenant.name)) * 31 + thread.number
