# SPDX-License-Identifier: Apache-2.0
"""What the driver can do that decides how a quota is held: limits of its own, MIG, its lists."""

from __future__ import annotations

from collections.abc import Iterator

from .driver import DriverPaths
from .process import ask, child, environment
from .report import ReportRow


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    cards = ask(child("features"), environment(driver.env))["cards"]
    yield ReportRow("NVML: cards", len(cards))
    for number, card in enumerate(cards):
        for name, said in card.items():
            yield ReportRow(f"card {number}: {name}", said)
