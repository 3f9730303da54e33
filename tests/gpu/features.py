# SPDX-License-Identifier: Apache-2.0
"""What the driver can do that decides how a quota is held: limits of its own, MIG, its lists."""

from __future__ import annotations

from collections.abc import Iterator

from .driver import Driver
from .process import ask, child, environment
from .report import Row


def rows(driver: Driver) -> Iterator[Row]:
    cards = ask(child("features"), environment(driver.env))["cards"]
    yield Row("NVML: cards", len(cards))
    for number, card in enumerate(cards):
        for name, said in card.items():
            yield Row(f"card {number}: {name}", said)
