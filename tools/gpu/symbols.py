# SPDX-License-Identifier: Apache-2.0
"""The real libraries' exports beside the tables that the filters are made from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from libhook.table import elf
from libhook.table.generate import OF_DRIVER

from .driver import DriverPaths
from .report import ReportRow

TABLE = Path(__file__).resolve().parents[2] / "libhook" / "table"
CUDA_LINE = re.compile(r"^CUDA_SYMBOL\((\w+), (\w+), (\d+), (\w+)\)$", re.MULTILINE)
NVML_LINE = re.compile(r"^NVML_SYMBOL\((\w+), \d+\)$", re.MULTILINE)


@dataclass(frozen=True)
class SymbolLine:
    """`symbol` answers to `name` from CUDA `version` (11020 is 11.2) on."""

    symbol: str
    name: str
    version: int
    stream: str


def cuda_lines() -> list[SymbolLine]:
    found = CUDA_LINE.findall((TABLE / "cuda.inc").read_text())
    return [
        SymbolLine(symbol, name, int(version), stream) for symbol, name, version, stream in found
    ]


def nvml_symbols() -> set[str]:
    return set(NVML_LINE.findall((TABLE / "nvml.inc").read_text()))


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    lines = cuda_lines()
    due = {line.symbol for line in lines if line.version <= driver.cuda_version}
    yield from _exports("libcuda", driver.cuda, "cu", due, {line.symbol for line in lines})
    yield from _exports("libnvidia-ml", driver.nvml, "nvml", nvml_symbols(), set())


def _exports(
    name: str, library: Path, prefix: str, due: set[str], known: set[str]
) -> Iterator[ReportRow]:
    """Compare what a library exports with what is `due`, and what is `known` of any release."""
    exported = elf.read(library).exported
    there = {one for one in exported if OF_DRIVER.fullmatch(one) and one.startswith(prefix)}
    note = f"of {len(due)} for this release"
    yield ReportRow(f"{name}: exports of the table", len(due & there), note=note)
    for what, names in (
        ("missing", due - there),
        ("of later releases, there already", there & known - due),
        ("not in the table", there - due - known),
    ):
        yield ReportRow(f"{name}: {what}", len(names), detail=tuple(sorted(names)))
