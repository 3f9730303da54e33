# SPDX-License-Identifier: Apache-2.0
"""The real libraries' exports beside the tables that the filters are made from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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


@dataclass(frozen=True)
class Comparison:
    """A library's exports of one prefix beside a table; names are sorted.

    `early` are those that the table has for later releases only, `new` those it has not at all.
    """

    common: int
    missing: tuple[str, ...]
    early: tuple[str, ...]
    new: tuple[str, ...]


def compare(
    exported: Iterable[str], expected: Iterable[str], prefix: str, later: Iterable[str] = ()
) -> Comparison:
    """Compare `exported` with what is `expected`, and with what `later` releases add."""
    due, future = set(expected), set(later)
    there = {name for name in exported if OF_DRIVER.fullmatch(name) and name.startswith(prefix)}
    return Comparison(
        common=len(due & there),
        missing=tuple(sorted(due - there)),
        early=tuple(sorted(there & future - due)),
        new=tuple(sorted(there - due - future)),
    )


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    lines = cuda_lines()
    due = {line.symbol for line in lines if line.version <= driver.cuda_version}
    exported = elf.read(driver.cuda).exported
    yield from _exports("libcuda", compare(exported, due, "cu", {line.symbol for line in lines}))
    seen = compare(elf.read(driver.nvml).exported, nvml_symbols(), "nvml")
    yield from _exports("libnvidia-ml", seen)


def _exports(name: str, seen: Comparison) -> Iterator[ReportRow]:
    due = seen.common + len(seen.missing)
    yield ReportRow(f"{name}: exports of the table", seen.common, note=f"of {due} for this release")
    for what, names in (
        ("missing", seen.missing),
        ("of later releases, there already", seen.early),
        ("not in the table", seen.new),
    ):
        yield ReportRow(f"{name}: {what}", len(names), detail=names)
