# SPDX-License-Identifier: Apache-2.0
"""The committed tables of the driver's symbols (libhook/table)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

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
