# SPDX-License-Identifier: Apache-2.0
"""What a context and a module take of the card before a program has allocated anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

from . import built
from .driver import DriverPaths
from .process import Child, environment
from .report import NotMeasured, ReportRow

PROCESSES = 3
MIB = 1 << 20


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    with ExitStack() as stack:
        watcher = stack.enter_context(probe(driver, "watcher"))
        alone = card(watcher, driver)["used"]
        yield ReportRow(
            "NVML: used before", alone, "bytes", "the driver's own and other processes'"
        )
        used = [alone]
        started = []
        for number in range(PROCESSES):
            process = stack.enter_context(probe(driver, f"process {number + 1}"))
            process.ask("context")
            started.append(process)
            used.append(card(watcher, driver)["used"])
            yield ReportRow(
                f"context of process {number + 1}", used[-1] - used[-2], "bytes", "more used"
            )
        yield from _by_process(card(watcher, driver), started)
        before = card(watcher, driver)["used"]
        started[0].ask("spin 1000 1")
        after = card(watcher, driver)["used"]
        yield ReportRow("a small module, loaded and run", after - before, "bytes", "more used")
    with probe(driver, "watcher") as watcher:
        left = card(watcher, driver)["used"] - alone
        yield ReportRow.claim(
            "all of it is free again once they end", abs(left) < MIB, f"{left} bytes"
        )


def context_bytes(driver: DriverPaths) -> int:
    """Return the size of one process's context; NotMeasured if NVML does not report it."""
    with probe(driver, "watcher") as watcher:
        before = card(watcher, driver)["used"]
        with probe(driver, "context") as process:
            process.ask("context")
            taken = card(watcher, driver)["used"] - before
    if taken <= 0:
        raise NotMeasured(f"NVML shows {taken} bytes more used with a context than without")
    return int(taken)


def probe(driver: DriverPaths, name: str) -> Child:
    """Start gpushare-probe on the bare driver; it has no context yet."""
    argv = [built.probe(), "--library", str(driver.cuda)]
    process = Child(name, argv, environment(driver.env))
    started = process.start()
    if started.get("code"):
        process.close()
        raise NotMeasured(f"gpushare-probe: {started}")
    return process


def card(watcher: Child, driver: DriverPaths) -> dict[str, Any]:
    """Return what NVML shows of `driver`'s card, as gpushare-probe's `smi` says it."""
    seen = watcher.ask("smi")
    for shown in seen.get("cards", []):
        if shown["uuid"] == driver.uuid:
            return dict(shown)
    raise NotMeasured(f"NVML shows no card {driver.uuid}: {seen}")


def _by_process(shown: dict[str, Any], started: list[Child]) -> Iterator[ReportRow]:
    pids = {process.process.pid for process in started}
    sizes = [entry["bytes"] for entry in shown["processes"] if entry["pid"] in pids]
    if len(sizes) < len(started):
        why = f"it lists {len(sizes)} of our {len(started)} processes by this pid namespace's pids"
        yield ReportRow("NVML: one process's figure", missing=why)
    else:
        yield ReportRow("NVML: one process's figure", median(sizes), "bytes", f"all: {sizes}")
