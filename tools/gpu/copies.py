# SPDX-License-Identifier: Apache-2.0
"""What NVML counts as a process's use of the card: kernels, and copies by the driver itself."""

from __future__ import annotations

from collections.abc import Iterator

from .driver import DriverPaths
from .process import Child, child, environment
from .report import ReportRow

SECONDS = 3  # NVML has a sample of the last second or less


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    for work in ("kernels", "copies"):
        argv = child("tried", str(driver.cuda), driver.uuid)
        with Child("copies", argv, environment(driver.env)) as program:
            program.start()
            program.ask("begin")
            seen = program.ask(f"busy {work} {SECONDS}")
            yield ReportRow(f"{work} alone: smUtil", seen["smUtil"], "%")
