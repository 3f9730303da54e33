# SPDX-License-Identifier: Apache-2.0
"""What the card gets done when several contexts keep it busy, beside what one alone does."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from tools.bench.result import percentile

from .driver import DriverPaths
from .process import Child
from .report import ReportRow
from .slices import workers

KERNELS_NS = (100_000, 2_000_000)
SECONDS = 1.5
CONTEXTS = (2, 3, 4)
WAITS = 300
TURN_KERNEL_NS = 200_000
KERNELS = 25  # of a turn: 5 ms
TURNS = 100  # of each process


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    for kernel_ns in KERNELS_NS:
        yield from _contexts(driver, kernel_ns)
    yield from _per_context(driver)


def _contexts(driver: DriverPaths, kernel_ns: int) -> Iterator[ReportRow]:
    what = f"kernels of {kernel_ns / 1e6:g} ms"
    with workers(driver, max(CONTEXTS)) as made:
        load = _load(made[0], kernel_ns)
        alone = sum(_together(made[:1], load))
        yield ReportRow(f"1 context, {what}", alone, "kernels/s")
        for count in CONTEXTS:
            rates = _together(made[:count], load)
            yield ReportRow(
                f"{count} contexts, {what}: all of them",
                100 * sum(rates) / alone,
                "% of one alone",
                "each " + ", ".join(f"{100 * rate / alone:.1f}" for rate in rates),
            )


def _per_context(driver: DriverPaths) -> Iterator[ReportRow]:
    """One process with several contexts beside one with one: are contexts served, or processes?"""
    for several in (2, 3):
        with workers(driver, 2) as made:
            load = _load(made[0], KERNELS_NS[0])
            made[0].tell(f"work {load} {SECONDS} {several}")
            made[1].tell(f"work {load} {SECONDS} 1")
            others = sum(made[0].receive("work")["rates"])
            one = sum(made[1].receive("work")["rates"])
        yield ReportRow(
            f"a process with one context beside one with {several} gets",
            100 * one / (one + others),
            "%",
            f"{100 / (several + 1):.1f} where contexts take turns, 50 where processes do",
        )


def _load(worker: Child, kernel_ns: int) -> str:
    """Return the words for kernels that take `kernel_ns` of this card."""
    return f"{kernel_ns} {worker.ask(f'calibrate {kernel_ns}')['rounds']}"


def _together(made: Sequence[Child], load: str) -> list[float]:
    for worker in made:
        worker.tell(f"work {load} {SECONDS} 1")
    return [sum(worker.receive("work")["rates"]) for worker in made]


def latency(driver: DriverPaths) -> Iterator[ReportRow]:
    """The costs that metering by events has."""
    with workers(driver, 1) as (worker,):
        seen = worker.ask(f"drain {_load(worker, KERNELS_NS[0])} {WAITS}")
        yield ReportRow(
            "drain: a kernel waited for before the next, over one queued",
            seen["waited_ns"] - seen["queued_ns"],
            "ns",
            f"{seen['waited_ns'] / 1e3:.1f} us less {seen['queued_ns'] / 1e3:.1f} us",
        )
        lags = worker.ask(f"visible 50000 {WAITS}")["lags_ns"]
        yield ReportRow(
            "an event is seen done after the kernel's last store is",
            median(lags),
            "ns",
            f"99th percentile {percentile(lags, 99) / 1e3:.1f} us",
        )


def handover(driver: DriverPaths) -> Iterator[ReportRow]:
    """What is lost when one process's work must have ended before another's begins.

    That is how windows of a shared card change hands: the holder's last kernel ends, its end is
    seen, the next is told, and its first kernel starts.
    """
    with workers(driver, 2) as made, tempfile.TemporaryDirectory() as folder:
        rounds = made[0].ask(f"calibrate {TURN_KERNEL_NS}")["rounds"]
        load = f"{TURN_KERNEL_NS} {rounds}"
        kernel_ns = made[0].ask(f"batch {load} {KERNELS * 10}")["kernel_ns"]
        relay = Relay(Path(folder), made[0], made[1], load)
        passed_ns = relay.turn_ns(kernels=0)
        turn_ns = relay.turn_ns(kernels=KERNELS)
    lost_ns = turn_ns - KERNELS * kernel_ns
    yield ReportRow(
        "a turn of kernels, queued at once", KERNELS * kernel_ns, "ns", f"{KERNELS} kernels"
    )
    yield ReportRow("lost at each handover", lost_ns, "ns", f"{lost_ns / turn_ns:.2%} of a turn")
    note = "by a pipe, an event between them that nothing is before; contained in the line above"
    yield ReportRow("of it, telling the other process and recording", passed_ns, "ns", note)


class Relay:
    """Two processes that take turns by telling each other, through two FIFOs."""

    def __init__(self, folder: Path, first: Child, second: Child, load: str) -> None:
        self._there, self._back = folder / "there", folder / "back"
        for path in (self._there, self._back):
            os.mkfifo(path)
        self._first, self._second, self._load = first, second, load

    def turn_ns(self, kernels: int) -> float:
        """Return what a turn of `kernels` takes from its begin to that of the next."""
        turns = f"{TURNS} {kernels} {self._load}"
        start = os.open(self._there, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._first.tell(f"relay {self._there} {self._back} {turns}")
            self._second.tell(f"relay {self._back} {self._there} {turns}")
            os.write(start, b".")
            began = self._first.receive("relay")["began_ns"]
            ended = self._second.receive("relay")["ended_ns"]
            os.read(start, 1)  # the last turn's, which no process takes
        finally:
            os.close(start)
        return float(ended - began) / (2 * TURNS)
