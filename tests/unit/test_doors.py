# SPDX-License-Identifier: Apache-2.0
"""Every symbol of the driver's tables is classified, and what is wrong with a line is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from libhook.table import doors, elf, generate
from libhook.table.doors import assign, exported, flaws, read, refusals, unlike

ROOT = Path(__file__).resolve().parents[2]
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


# doors.txt as it is


def test_the_committed_lines_are_in_order() -> None:
    done = subprocess.run(
        [sys.executable, "libhook/table/doors.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_symbol_of_both_libraries_has_a_line() -> None:
    symbols = exported()
    assert len(assign(read(doors.SOURCE.read_text()), symbols)) == len(symbols) > 1100


@pytest.mark.parametrize(
    "symbol",
    ["cuMemAllocAsync_ptsz", "cuMemAllocPitch_v2", "cuIpcOpenMemHandle_v2", "cuCtxCreate_v4"],
)
def test_each_form_of_an_allocation_is_mediated(symbol: str) -> None:
    assert assign(read(doors.SOURCE.read_text()), exported())[symbol].kind == "mediated"


@pytest.mark.parametrize(
    "name",
    [
        *("cuLaunch", "cuLaunchKernelEx_ptsz", "cuLaunchCooperativeKernelMultiDevice"),
        *("cuGraphLaunch_ptsz", "cuMemcpyHtoD", "cuMemcpyAtoA_v2_ptds", "cuMemcpy3DBatchAsync_v2"),
        *("cuMemsetD2D16", "cuMemPrefetchAsync_v2_ptsz", "cuMemBatchDecompressAsync"),
    ],
)
def test_each_form_of_what_starts_work_passes_the_gate(name: str) -> None:
    door = assign(read(doors.SOURCE.read_text()), exported())[name]
    assert door.kind == "mediated"
    assert "gated: " in door.reason


def test_of_what_sounds_like_work_nothing_passes_without_saying_why_it_is_none() -> None:
    lines = assign(read(doors.SOURCE.read_text()), exported())
    passing = {
        door.name: door.reason
        for symbol, door in lines.items()
        if doors.STARTS.search(door.name) and door.passes
    }
    assert all("o work: " in reason for reason in passing.values())
    assert {"cuLaunchHostFunc", "cuStreamWriteValue64", "cuMemDiscardBatchAsync"} <= set(passing)


@pytest.mark.parametrize("sign", ["Set", "Reset", "Clear", "Destroy", "Remove", "Modify", "Force"])
def test_nothing_that_changes_a_card_passes_but_what_binds_the_caller_s_own_thread(
    sign: str,
) -> None:
    lines = assign(read(doors.SOURCE.read_text()), exported())
    passing = {
        symbol
        for symbol, door in lines.items()
        if symbol.startswith("nvml")
        and re.search(f"{sign}[A-Z]", symbol.replace("EventSet", ""))
        and door.passes
    }
    assert passing <= {"nvmlDeviceSetCpuAffinity", "nvmlDeviceClearCpuAffinity"}


# What a line says


def test_a_line_is_for_all_forms_of_its_name_but_those_with_a_line_of_their_own() -> None:
    lines = assign(read(TEXT), SYMBOLS)
    assert {symbol: door.name for symbol, door in lines.items()} == {
        "cuMemAlloc": "cuMemAlloc",
        "cuMemAlloc_v2": "cuMemAlloc",
        "cuMemAlloc_v2_ptsz": "cuMemAlloc",
        "cuMemAlloc_v3": "cuMemAlloc_v3",
        "cuMemGetAccess": "cuMemGetAccess",
        "nvmlDeviceSetMode_v1": "nvmlDeviceSetMode",
    }


def test_a_line_without_a_reason_has_its_group_s() -> None:
    assert [(door.group, door.reason) for door in read(TEXT)][2:] == [
        ("Memory", "Asks only."),
        ("Settings", 'NVML_ERROR_NO_PERMISSION: changes the "card".'),
    ]


@pytest.mark.parametrize(
    "line", ["cuMemFree", "cuMemFree closed - why", "cuMemFree passes always why", "free passes -"]
)
def test_a_line_that_cannot_be_read_is_refused_by_its_number(line: str) -> None:
    with pytest.raises(doors.DoorsError, match="line 10 is not NAME CLASS AUDIT REASON"):
        read(TEXT + line)


# What is wrong


def test_lines_about_all_symbols_are_right() -> None:
    assert found(TEXT) == ""


def test_a_new_symbol_is_shown_with_the_line_to_add() -> None:
    said = found(TEXT, [*SYMBOLS, "cuMemTake", "cuMemTake_v2", "cuMemTake_ptsz"])
    assert "not classified" in said
    assert said.count("cuMemTake ") == 1
    (line,) = [line for line in said.splitlines() if "cuMemTake" in line]
    assert read(line.strip())[0].name == "cuMemTake"


def test_a_line_about_no_symbol_is_found() -> None:
    said = found(TEXT + "nvmlDeviceNever     passes    -          why")
    assert said == (
        "doors.txt:10: nvmlDeviceNever is no symbol of the tables, or another line has all its "
        "symbols"
    )


def test_a_line_whose_symbols_all_have_lines_of_their_own_is_found() -> None:
    assert "doors.txt:4: cuMemAlloc is no symbol" in found(TEXT, [*SYMBOLS[3:]])


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        ("cuMemImport         passes    -          why", "passes and may take memory"),
        ("cuGraphUpload       passes    -          why", "passes and may take memory"),
        ("cuMemImport         passes    measured", "needs a reason of its own"),
        ("cuMemImport         refused   -          because", "begins with an error"),
        ("cuMemcpyTwiceAsync  passes    -          why", "may start work"),
        ("cuLaunchKernelLater mediated  -          counted: as others", "may start work"),
    ],
)
def test_a_line_that_says_too_little_is_found(line: str, flaw: str) -> None:
    text = TEXT.replace("> NVML_ERROR_NO_PERMISSION", "> -") + line
    text = text.replace("nvmlDeviceSetMode   refused", "nvmlDeviceSetMode   view   ")
    said = found(text, [*SYMBOLS, line.split(maxsplit=1)[0]])
    assert said.startswith(f"doors.txt:10: {line.split(maxsplit=1)[0]}")
    assert flaw in said


def test_two_classes_do_not_share_a_reason() -> None:
    said = found(TEXT + "nvmlDeviceTell      passes    -", [*SYMBOLS, "nvmlDeviceTell"])
    assert said == (
        "doors.txt:10: nvmlDeviceTell is passes: its group's reason is of what is refused"
    )


def test_a_line_without_any_reason_is_found() -> None:
    assert "cuMemGetAccess has no reason" in found(TEXT.replace("> Asks only.\n", ""))


@pytest.mark.parametrize(
    "name",
    [
        "cuMemAllocPitch",
        "cuArrayCreate",
        "cuMemImportX",
        "cuIpcOpenMemHandle",
        "cuModuleLoad",
        "cuMemMap",
        "cuGraphInstantiate",
        "cuGLMapBufferObject",
        "cuLibraryLoadData",
    ],
)
def test_a_name_that_sounds_like_an_allocation_is_known(name: str) -> None:
    assert doors.TAKES.search(name)


@pytest.mark.parametrize("name", ["cuModuleUnload", "cuMemUnmap", "cuFuncIsLoaded", "cuMemFree"])
def test_a_name_that_gives_back_is_not_taken_for_an_allocation(name: str) -> None:
    assert not doors.TAKES.search(name)


# What the filters do


def test_a_filter_that_does_otherwise_is_found() -> None:
    lines = assign(read(TEXT), SYMBOLS)
    names = frozenset(SYMBOLS) - {"cuMemAlloc_v2_ptsz"}
    weak = frozenset({"cuMemAlloc_v2", "cuMemAlloc_v3"})
    filter_ = elf.Library("libcuda.so.1", (), exported=names, weak=weak)
    assert list(unlike(lines, [filter_])) == [
        ("cuMemAlloc_v2", "mediated by doors.txt:4, and the filter lets it pass"),
        ("cuMemAlloc_v2_ptsz", "no filter exports it"),
        ("cuMemGetAccess", "passes by doors.txt:6, and the filter has a function"),
    ]


def test_what_is_refused_is_listed_with_the_error_and_why() -> None:
    (text,) = refusals(assign(read(TEXT), SYMBOLS)).values()
    assert text.splitlines()[-1] == (
        "NVML_REFUSED(nvmlDeviceSetMode_v1, NVML_ERROR_NO_PERMISSION, \"changes the 'card'\")"
    )


# A real library


def test_what_a_library_exports_beyond_the_tables_is_named(tmp_path: Path) -> None:
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    names = ["cuInit", "cuTomorrow", "cudbgApiInit", "nvmlTomorrow_v2", "other"]
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert generate.unknown(library) == ["cuTomorrow", "nvmlTomorrow_v2"]


def test_a_file_that_is_no_library_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.compare(tmp_path / "none") == 1
    assert "No such file" in capsys.readouterr().err
