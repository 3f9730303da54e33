# SPDX-License-Identifier: Apache-2.0
"""Every symbol of the driver's tables is classified, and what is wrong with a line is found."""

from __future__ import annotations

import re

import pytest

from libhook.table import coverage, elf
from libhook.table.coverage import assign, exported, flaws, read, unlike

TEXT = """\
# a comment
## Memory
> Asks only.
cuMemAlloc          mediated  -          charged: the size
cuMemAlloc_v3       passes    measured   for somebody else
cuMemGetAccess      passes    -
## Settings
> NVML_ERROR_NO_PERMISSION: changes the "card".
nvmlDeviceSetMode   refused   -
"""
SYMBOLS = [
    "cuMemAlloc",
    "cuMemAlloc_v2",
    "cuMemAlloc_v2_ptsz",
    "cuMemAlloc_v3",
    "cuMemGetAccess",
    "nvmlDeviceSetMode_v1",
]


def found(text: str, symbols: list[str] | None = None) -> str:
    return "\n".join(flaws(read(text), symbols or SYMBOLS))


def test_every_symbol_of_both_libraries_has_a_line() -> None:
    symbols = exported()
    assert len(assign(read(coverage.SOURCE.read_text()), symbols)) == len(symbols) > 1100


@pytest.mark.parametrize("sign", ["Set", "Reset", "Clear", "Destroy", "Remove", "Modify", "Force"])
def test_only_calls_on_the_caller_s_own_thread_pass_if_they_change_a_card(
    sign: str,
) -> None:
    lines = assign(read(coverage.SOURCE.read_text()), exported())
    passing = {
        symbol
        for symbol, entry in lines.items()
        if symbol.startswith("nvml")
        and re.search(f"{sign}[A-Z]", symbol.replace("EventSet", ""))
        and entry.passes
    }
    assert passing <= {"nvmlDeviceSetCpuAffinity", "nvmlDeviceClearCpuAffinity"}


def test_a_line_is_for_all_forms_of_its_name_but_those_with_a_line_of_their_own() -> None:
    lines = assign(read(TEXT), SYMBOLS)
    assert {symbol: entry.name for symbol, entry in lines.items()} == {
        "cuMemAlloc": "cuMemAlloc",
        "cuMemAlloc_v2": "cuMemAlloc",
        "cuMemAlloc_v2_ptsz": "cuMemAlloc",
        "cuMemAlloc_v3": "cuMemAlloc_v3",
        "cuMemGetAccess": "cuMemGetAccess",
        "nvmlDeviceSetMode_v1": "nvmlDeviceSetMode",
    }


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        ("cuMemImport         passes    -          why", "passes and may take memory"),
        ("cuGraphUpload       passes    -          why", "passes and may take memory"),
        ("cuMemImport         passes    measured", "needs a reason of its own"),
        ("cuMemImport         refused   -          because", "must begin with an error"),
        ("cuMemcpyTwiceAsync  passes    -          why", "may start work"),
        ("cuLaunchKernelLater mediated  -          counted: as others", "may start work"),
    ],
)
def test_a_line_that_says_too_little_is_found(line: str, flaw: str) -> None:
    text = TEXT.replace("> NVML_ERROR_NO_PERMISSION", "> -") + line
    text = text.replace("nvmlDeviceSetMode   refused", "nvmlDeviceSetMode   view   ")
    said = found(text, [*SYMBOLS, line.split(maxsplit=1)[0]])
    assert said.startswith(f"coverage.txt:10: {line.split(maxsplit=1)[0]}")
    assert flaw in said


def test_a_library_that_handles_a_function_differently_is_found() -> None:
    lines = assign(read(TEXT), SYMBOLS)
    names = frozenset(SYMBOLS) - {"cuMemAlloc_v2_ptsz"}
    weak = frozenset({"cuMemAlloc_v2", "cuMemAlloc_v3"})
    library = elf.ElfLibrary("libcuda.so.1", (), exported=names, weak=weak)
    assert list(unlike(lines, [library])) == [
        ("cuMemAlloc_v2", "mediated in coverage.txt:4, but the library passes it through"),
        ("cuMemAlloc_v2_ptsz", "neither library exports it"),
        ("cuMemGetAccess", "passes in coverage.txt:6, but the library has a function for it"),
    ]
