# SPDX-License-Identifier: Apache-2.0
"""The committed tables of the driver's symbols (libhook/table), and what they say of a look-up."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "libhook" / "table"
LEGACY_STREAM, PER_THREAD_STREAM = 1, 2
FLAGS = (0, LEGACY_STREAM, PER_THREAD_STREAM)
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


@dataclass(frozen=True, order=True)
class Question:
    """The arguments of a cuGetProcAddress call."""

    name: str
    version: int
    flags: int


def questions(lines: Iterable[SymbolLine], driver_version: int) -> dict[Question, str | None]:
    """Return every look-up that tells lines apart on a driver of that version, with its answer.

    Each name at each version from which one of its symbols answers, one step before that, and the
    driver's own, with every flag; nothing newer than the driver, which knows no such version.
    """
    by_name: dict[str, list[SymbolLine]] = defaultdict(list)
    for line in lines:
        if line.version <= driver_version:
            by_name[line.name].append(line)
    asked: dict[Question, str | None] = {}
    for name, group in by_name.items():
        versions = {line.version for line in group} | {line.version - 1 for line in group}
        for version in versions | {driver_version}:
            for flags in FLAGS:
                asked[Question(name, version, flags)] = answer(group, version, flags)
    return asked


def answer(lines: Iterable[SymbolLine], version: int, flags: int) -> str | None:
    """Return the symbol that the lines of one name answer with; the rule is cuda.inc's."""
    fit = [line for line in lines if line.version <= version]
    per_thread = [line for line in fit if line.stream == "PER_THREAD"]
    others = [line for line in fit if line.stream != "PER_THREAD"]
    chosen = per_thread if flags & PER_THREAD_STREAM and per_thread else others
    return chosen[-1].symbol if chosen else None
