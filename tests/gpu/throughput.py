# SPDX-License-Identifier: Apache-2.0
"""What the card gets done when several contexts keep it busy, beside what one alone does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .driver import Driver
from .process import Child
from .report import Row
from .slices import workers
from .timeline import median, quantile

KERNELS_NS = (100_000, 2_000_000)
SECONDS = 1.5
CONTEXTS = (2, 3, 4)
BATCH, BATCHES = 200, 50
WAITS = 300


def rows(driver: Driver) -> Iterator[Row]:
    for kernel_ns in KERNELS_NS:
        yield from _contexts(driver, kernel_ns)
    yield from _per_context(driver)


def _contexts(driver: Driver, kernel_ns: int) -> Iterator[Row]:
    what = f"kernels of {kernel_ns / 1e6:g} ms"
    with workers(driver, max(CONTEXTS)) as made:
        rounds = made[0].ask(f"calibrate {kernel_ns}")["rounds"]
        alone = sum(_together(made[:1], rounds))
        yield Row(f"1 context, {what}", alone, "kernels/s")
        for count in CONTEXTS:
            rates = _together(made[:count], rounds)
            yield Row(
                f"{count} contexts, {what}: all of them",
                100 * sum(rates) / alone,
                "% of one alone",
                "each " + ", ".join(f"{100 * rate / alone:.1f}" for rate in rates),
            )


def _per_context(driver: Driver) -> Iterator[Row]:
    """One process with two contexts beside one with one: are contexts served, or processes?"""
    with workers(driver, 2) as made:
        rounds = made[0].ask(f"calibrate {KERNELS_NS[0]}")["rounds"]
        made[0].send(f"work {rounds} {SECONDS} 2")
        made[1].send(f"work {rounds} {SECONDS} 1")
        two = sum(made[0].receive("work")["rates"])
        one = sum(made[1].receive("work")["rates"])
    yield Row(
        "a process with one context beside one with two gets",
        100 * one / (one + two),
        "%",
        "33.3 where contexts take turns, 50 where processes do",
    )


def _together(made: Sequence[Child], rounds: int) -> list[float]:
    for worker in made:
        worker.send(f"work {rounds} {SECONDS} 1")
    return [sum(worker.receive("work")["rates"]) for worker in made]


def latency(driver: Driver) -> Iterator[Row]:
    """The costs that metering by events has."""
    with workers(driver, 1) as (worker,):
        seen = worker.ask(f"record {BATCH} {BATCHES}")
        note = f"from Python, where an empty driver call takes {seen['empty_ns']:.0f} ns"
        yield Row("cuEventRecord", seen["record_ns"], "ns", note)
        rounds = worker.ask(f"calibrate {KERNELS_NS[0]}")["rounds"]
        seen = worker.ask(f"drain {rounds} {WAITS}")
        yield Row(
            "drain: a kernel waited for before the next, over one queued",
            seen["waited_ns"] - seen["queued_ns"],
            "ns",
            f"{seen['waited_ns'] / 1e3:.1f} us less {seen['queued_ns'] / 1e3:.1f} us",
        )
        lags = worker.ask(f"visible 50000 {WAITS}")["lags_ns"]
        yield Row(
            "an event is seen done after the kernel's last store is",
            median(lags),
            "ns",
            f"99th percentile {quantile(lags, 0.99) / 1e3:.1f} us",
        )
