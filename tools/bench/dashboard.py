# SPDX-License-Identifier: Apache-2.0
"""How long the dashboard's first page takes in a browser whose processor is four times as slow."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack

from gpushare.client import Client
from gpushare.history import FOLDER
from gpushare.verify.runners import spawn
from tests.browser import chromium
from tests.dashboard_pictures import address_of, start, write_history
from tests.stack import Stack

from .result import Result

SLOWER = 4
ROUNDS = 9
MOST_MS = 1000.0
MOST_KB = 500.0
_LOADED = (
    "const [one] = performance.getEntriesByType('navigation');"
    "return [one.domContentLoadedEventEnd, "
    "performance.getEntriesByType('resource').filter((file) => !file.name.includes('/api/'))"
    ".reduce((sum, file) => sum + file.transferSize, one.transferSize) / 1000]"
)


def measure() -> Iterator[Result]:
    """Load the overview with an empty cache; compare with a browser that is not slowed down."""
    with Stack() as stack, ExitStack() as running:
        with stack.config.open("a") as settings:
            settings.write("metrics_history: {retention_days: 0}\n")  # it is written here
        stack.start_daemon()
        running.enter_context(spawn(stack.host(), "train", {"memory": "4GiB"})).start()
        write_history(stack.root / "state" / FOLDER, Client(stack.socket).metrics())
        address = address_of(start(stack))
        fast, slow = [_load(address, factor) for factor in (1, SLOWER)]
    name = f"dashboard: DOMContentLoaded, {SLOWER} times slower processor"
    (before, _), (loaded, size) = fast, slow
    yield Result(name, "ms", loaded, before, loaded - before, MOST_MS, absolute=True)
    yield Result("dashboard: files of a page", "kB", size, size, 0, MOST_KB, absolute=True)


def _load(address: str, factor: int) -> tuple[float, float]:
    """Return the medians of the time until DOMContentLoaded and of the kilobytes."""
    found: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        with chromium() as browser:
            browser.driver.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": factor})
            browser.open(address)
            loaded, size = browser.script(_LOADED)
            found.append((float(loaded), float(size)))
    return (
        statistics.median(one for one, _ in found),
        statistics.median(size for _, size in found),
    )
