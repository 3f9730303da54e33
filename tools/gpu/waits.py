# SPDX-License-Identifier: Apache-2.0
"""Two clients that wait for their kernels: how much of the card they use, bare and by turns.

While one waits for its kernels to end, and then for the next launch, the card is idle unless the
other's run. A client of `fixed-share` has it to itself in its window.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gpushare.verify.runners import ProbeFailed

from . import programs
from .child.kernels import BLOCKS_PER_MULTIPROCESSOR
from .containers import stack
from .cuda import TARGETS, source
from .driver import DriverPaths
from .process import Child, ask, child, environment
from .report import NotMeasured, ReportRow

US = 1_000
KERNELS_NS = (20 * US, 200 * US, 2000 * US)
EVERY = (1, 8)
WAYS = ("polls", "sleeps")
SECONDS = 0.6
BEGIN_NS = 50_000_000
SETTLED_SECONDS = 1.0  # of the first work under gpushare: estimates are learned by then


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    loads = dict(zip(KERNELS_NS, calibrated(driver, *KERNELS_NS), strict=True))
    blocks = BLOCKS_PER_MULTIPROCESSOR * driver.multiprocessors
    with _pair(driver, blocks, gated=False) as bare, _pair(driver, blocks, gated=True) as gated:
        for kernel_ns, rounds in loads.items():
            for every in EVERY:
                for way in WAYS:
                    load = f"{kernel_ns} {rounds} {every} {way}"
                    yield _row(f"{_name(kernel_ns, every)}, {way}", load, bare, gated)


def calibrated(driver: DriverPaths, *wanted_ns: int) -> list[int]:
    """Return for each duration the rounds of work that keep this card busy for so long."""
    words = child("kernels", str(driver.cuda), *map(str, wanted_ns))
    rounds: list[int] = ask(words, environment(driver.env))["rounds"]
    return rounds


def _name(kernel_ns: int, every: int) -> str:
    after = "each" if every == 1 else str(every)
    return f"kernels of {kernel_ns // US} us, a wait after {after}"


def _row(name: str, load: str, bare: Sequence[Child], gated: Sequence[Child]) -> ReportRow:
    """Return what two of `load` get done in turns, beside one of them and beside both bare."""
    (alone,) = _done(bare[:1], load, SECONDS)
    native = _done(bare, load, SECONDS)
    _done(gated, load, SETTLED_SECONDS)
    turns = _done(gated, load, SECONDS)
    kernel_us = float(load.split(maxsplit=1)[0]) / US
    note = (
        f"bare {100 * sum(native) / alone:.1f} ({_split(native)}), gpushare {_split(turns)}; "
        f"one alone keeps the card busy for {alone * kernel_us / 1e4:.0f} % of the time"
    )
    return ReportRow(name, round(100 * sum(turns) / alone, 1), "% of one alone", note)


def _split(rates: Sequence[float]) -> str:
    return "/".join(f"{100 * rate / sum(rates):.0f}" for rate in rates)


def _done(clients: Sequence[Child], load: str, seconds: float) -> list[float]:
    """Let `clients` do `load` at the same time; return each one's kernels per second."""
    begin = time.monotonic_ns() + BEGIN_NS
    for client in clients:
        client.tell(f"work {begin} {load} {seconds}")
    seen = [client.receive("work") for client in clients]
    return [each["done"] / each["took_ns"] * 1e9 for each in seen]


@contextmanager
def _pair(driver: DriverPaths, blocks: int, *, gated: bool) -> Iterator[Sequence[Child]]:
    """Start two clients, by `gpushare run` with half a card each where they are `gated`."""
    program = str(programs.program("waiter"))
    with ExitStack() as exit_:
        folder = exit_.enter_context(tempfile.TemporaryDirectory(prefix="waits-"))
        Path(folder).chmod(0o755)
        kernel = Path(folder, "work.ptx")
        kernel.write_text(source("work", *TARGETS[-1 if driver.cuda_version >= 13000 else 0]))
        argv, env = [program, str(kernel), str(blocks)], environment(driver.env)
        if gated:
            made = exit_.enter_context(stack(driver))
            env = environment(env, made.env)
            quota = ["--memory", "2GiB", "--cores", "50", "--policy", "fixed-share"]
            argv = [*made.cli, "run", *quota, "--", *argv]
        try:
            clients = [exit_.enter_context(Child(f"client {at}", argv, env)) for at in range(2)]
            for client in clients:
                client.start()
        except ProbeFailed as error:
            raise NotMeasured(str(error)) from error
        yield clients
