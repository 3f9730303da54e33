# SPDX-License-Identifier: Apache-2.0
"""The driver's exports and look-ups beside the table, read from real libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from libhook.table import elf
from tools.gpu import filtered, symbols
from tools.gpu.driver import DriverPaths
from tools.gpu.table import Question, SymbolLine, answer, cuda_lines, nvml_symbols, questions


def compile_library(folder: Path, source: str, *flags: str) -> Path:
    (folder / "source.c").write_text(source)
    library = folder / "library.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", *flags, "-o", library, folder / "source.c"], check=True
    )
    return library


def test_a_librarys_exports_are_its_defined_and_visible_symbols(tmp_path: Path) -> None:
    library = elf.read(
        compile_library(
            tmp_path,
            "int cuMine(void) { return 1; }\n"
            "__attribute__((weak)) int cuWeak(void) { return 2; }\n"
            '__attribute__((visibility("hidden"))) int cuHidden(void) { return 3; }\n'
            "static int cuStatic(void) { return 4; }\n"
            "extern int cuElsewhere(void);\n"
            "int cuCaller(void) { return cuElsewhere() + cuStatic() + cuHidden(); }\n",
            *("-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed", "-lm"),
        )
    )
    assert {name for name in library.exported if name.startswith("cu")} == {
        "cuMine",
        "cuWeak",
        "cuCaller",
    }
    assert library.soname == "libcuda.so.1"
    assert library.needed[0] == "libm.so.6"


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + bytes(20)]
)
def test_a_file_that_is_no_library_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "libcuda.so.1"
    file.write_bytes(content)
    with pytest.raises(elf.NotElf, match=r"libcuda\.so\.1"):
        elf.read(file)


def test_a_library_cut_short_is_refused(tmp_path: Path) -> None:
    whole = compile_library(tmp_path, "int cuMine(void) { return 1; }\n").read_bytes()
    cut = tmp_path / "cut.so"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(elf.NotElf):
        elf.read(cut)


def test_exports_are_split_into_due_and_unknown() -> None:
    seen = symbols.compare(
        ["cuInit", "cuNew", "cuLater", "_init", "nvmlInit"],
        ["cuInit", "cuGone"],
        "cu",
        later=["cuInit", "cuLater", "cuMuchLater"],
    )
    assert seen == symbols.Comparison(1, ("cuGone",), ("cuLater",), ("cuNew",))


def test_the_simulated_driver_exports_the_whole_table(libraries: Path) -> None:
    exported = elf.read(libraries / "libcuda.so.1").exported
    assert {line.symbol for line in cuda_lines()} <= exported


def test_the_whole_table_is_read() -> None:
    assert len(cuda_lines()) > 700
    assert "nvmlInit_v2" in nvml_symbols()


LINES = [
    SymbolLine("cuX", "cuX", 2000, "LEGACY"),
    SymbolLine("cuX_v2", "cuX", 3020, "LEGACY"),
    SymbolLine("cuX_v2_ptsz", "cuX", 7000, "PER_THREAD"),
    SymbolLine("cuX_v3", "cuX", 13010, "LEGACY"),
]


@pytest.mark.parametrize(
    ("version", "flags", "symbol"),
    [
        (1999, 0, None),
        (3019, 0, "cuX"),
        (3020, 1, "cuX_v2"),
        (6999, 2, "cuX_v2"),
        (7000, 2, "cuX_v2_ptsz"),
    ],
)
def test_a_lookup_is_answered_as_the_table_says(
    version: int, flags: int, symbol: str | None
) -> None:
    assert answer(LINES, version, flags) == symbol


def test_a_driver_is_queried_for_no_symbol_newer_than_itself() -> None:
    asked = questions(LINES, 13000)
    assert {question.version for question in asked} == {1999, 2000, 3019, 3020, 6999, 7000, 13000}
    assert asked[Question("cuX", 13000, 0)] == "cuX_v2"
    assert "cuX_v3" not in asked.values()


def test_the_simulated_driver_answers_every_lookup_by_the_table(driver: DriverPaths) -> None:
    claim, answered, *rest = symbols.lookups(driver)
    assert claim.held, rest
    assert isinstance(answered.value, int)
    assert answered.value > 2000


def test_a_driver_that_answers_otherwise_is_found_out(driver: DriverPaths, tmp_path: Path) -> None:
    """A driver that forgets the flags and gives an old symbol for a new name."""
    other = compile_library(
        tmp_path,
        r"""
        #include <string.h>
        #include <stdint.h>
        int cuDriverGetVersion(int *version) { *version = 12000; return 0; }
        int cuMemAlloc(void) { return 1; }
        int cuMemAlloc_v2(void) { return 2; }
        int cuGetProcAddress_v2(const char *name, void **found, int version,
                                uint64_t flags, int *status)
        {
            *found = strcmp(name, "cuMemAlloc") ? 0 : (void *)cuMemAlloc;
            *status = *found ? 0 : 1;
            return *found ? 0 : 500;
        }
        """,
        "-Wl,-Bsymbolic",
    )
    fake = DriverPaths(**{**vars(driver), "cuda": other, "env": {}})
    claim, answered, suffixed, elsewhere, different = symbols.lookups(fake)
    assert not claim.held
    assert "cuMemAlloc, 12000, 0: cuMemAlloc, expected cuMemAlloc_v2" in different.detail
    assert "cuMemAlloc, 2000, 0: cuMemAlloc, expected cuMemAlloc" not in different.detail
    assert "cuInit, 12000, 0: not found, error 500, expected cuInit" in different.detail
    assert suffixed.value == elsewhere.value == 0
    assert answered.value == sum(name == "cuMemAlloc" for name in _asked_names())


def _asked_names() -> list[str]:
    return [question.name for question in questions(cuda_lines(), 12000)]


def test_a_name_with_its_suffix_that_leads_elsewhere_is_found_out(
    driver: DriverPaths, tmp_path: Path
) -> None:
    """A driver that answers to cuMemAlloc_v2 too, with what it gives for cuMemAlloc."""
    other = compile_library(
        tmp_path,
        r"""
        #include <string.h>
        #include <stdint.h>
        int cuDriverGetVersion(int *version) { *version = 12000; return 0; }
        int cuMemAlloc(void) { return 1; }
        int cuMemAlloc_v2(void) { return 2; }
        int cuMemFree_v2(void) { return 3; }
        int cuGetProcAddress_v2(const char *name, void **found, int version,
                                uint64_t flags, int *status)
        {
            *found = strcmp(name, "cuMemAlloc_v2") ? 0 : (void *)cuMemAlloc;
            if (!strcmp(name, "cuMemFree_v2"))
                *found = (void *)cuMemFree_v2;
            *status = *found ? 0 : 1;
            return *found ? 0 : 500;
        }
        """,
        "-Wl,-Bsymbolic",
    )
    fake = DriverPaths(**{**vars(driver), "cuda": other, "env": {}})
    rows = {row.name: row for row in symbols.lookups(fake)}
    assert rows["names with a suffix that it answers, cuMemAlloc_v2"].detail == (
        *("cuMemAlloc_v2", "cuMemFree_v2"),
    )
    assert rows["of them not dlsym's address"].detail == ("cuMemAlloc_v2",)


def test_the_filtered_libraries_are_read_from_the_table() -> None:
    ours = filtered.ours()
    assert {"cuMemAlloc_v2", "cuMemGetInfo_v2", "cuMemAllocAsync_ptsz"} <= ours
    assert "cuDriverGetVersion" not in ours
