# SPDX-License-Identifier: Apache-2.0
"""What a context takes of the card, and what NVML shows of it."""

from __future__ import annotations

from typing import Any

from . import built
from .driver import DriverPaths
from .process import Child, environment
from .report import NotMeasured


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
