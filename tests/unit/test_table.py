"""The tables of the driver's symbols: how headers are read, and what the committed files hold."""

from __future__ import annotations

import re
import zipfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from libhook.table import headers, symbols
from libhook.table.generate import Table, differences, render, tabulate
from libhook.table.headers import Release

TABLE = Path(headers.__file__).parent
CUDA_H = """
#define cuMemAlloc cuMemAlloc_v2
#define cuMemcpy __CUDA_API_PTDS(cuMemcpy)
#define cuMemcpyHtoDAsync __CUDA_API_PTSZ(cuMemcpyHtoDAsync_v2)
typedef enum cudaError_enum {
    CUDA_SUCCESS = 0, /* not an error: cuNever(1) */
    CUDA_ERROR_OUT_OF_MEMORY = 2
} CUresult;
typedef enum CUdevice_attribute_enum {
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8, // first
    CU_DEVICE_ATTRIBUTE_SHARED_MEMORY_PER_BLOCK = 8,     // deprecated
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 0x0A,
    CU_DEVICE_ATTRIBUTE_MAX
} CUdevice_attribute;
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
CUresult CUDAAPI
cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount);
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, CUstream hStream);
CUresult CUDAAPI cuCtxDetach(CUcontext ctx);
/* CUresult CUDAAPI cuCommentedOut(void); */
#if defined(__CUDA_API_VERSION_INTERNAL)
    #undef cuMemAlloc
    #undef cuMemcpyHtoDAsync
    CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize);
    CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr_v1 dst, const void *src, CUstream hStream);
#endif
static inline CUresult cuGetProcAddress_v2_ptsz(const char *symbol);
"""
CUDA_TYPEDEFS_H = """
#define PFN_cuMemAlloc PFN_cuMemAlloc_v3020
typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)(CUdeviceptr_v2 *dptr, size_t bytesize);
typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v2000)(CUdeviceptr_v1 *dptr, unsigned int bytesize);
typedef CUresult (CUDAAPI *PFN_cuMemcpy_v4000)(CUdeviceptr_v2 dst);
typedef CUresult (CUDAAPI *PFN_cuMemcpy_v7000_ptds)(CUdeviceptr_v2 dst);
typedef CUresult (CUDAAPI *PFN_cuMemcpyHtoDAsync_v2000)(CUdeviceptr_v1 dst);
typedef CUresult (CUDAAPI *PFN_cuMemcpyHtoDAsync_v3020)(CUdeviceptr_v2 dst);
typedef CUresult (CUDAAPI *PFN_cuMemcpyHtoDAsync_v7000_ptsz)(CUdeviceptr_v2 dst);
typedef CUresult (CUDAAPI *PFN_cuCtxDetach_v2000)(CUcontext ctx);
"""
NVML_H = """
#define nvmlInit nvmlInit_v2
typedef enum nvmlReturn_enum { NVML_SUCCESS = 0, NVML_ERROR_GPU_IS_LOST = 15 } nvmlReturn_t;
nvmlReturn_t DECLDIR nvmlInit_v2(void);
const DECLDIR char* nvmlErrorString(nvmlReturn_t result);
#ifdef NVML_NO_UNVERSIONED_FUNC_DEFS
nvmlReturn_t  DECLDIR nvmlInit(void);
#endif
"""
DRIVER_TYPES_H = """
enum __device_builtin__ cudaError
{
    cudaSuccess                           =      0,
    cudaErrorMemoryAllocation             =      2  /* the runtime's name for it */
};
"""
RELEASE = Release(
    "0.0",
    {
        "cuda.h": CUDA_H,
        "cudaTypedefs.h": CUDA_TYPEDEFS_H,
        "nvml.h": NVML_H,
        "driver_types.h": DRIVER_TYPES_H,
    },
)


class Line(NamedTuple):
    """A CUDA_SYMBOL line of the committed cuda.inc."""

    symbol: str
    name: str
    version: int
    stream: str


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    found = re.findall(r"(?m)^CUDA_SYMBOL\((.*)\)$", (TABLE / "cuda.inc").read_text())
    assert len(found) > 600
    parts = [line.split(", ") for line in found]
    return [Line(symbol, name, int(version), stream) for symbol, name, version, stream in parts]


def test_a_declaration_exports_the_name_of_the_define_in_force() -> None:
    assert symbols.cuda_symbols(CUDA_H) == {
        "cuMemAlloc",
        "cuMemAlloc_v2",
        "cuMemcpy",
        "cuMemcpy_ptds",
        "cuMemcpyHtoDAsync",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyHtoDAsync_v2_ptsz",
        "cuCtxDetach",
    }


def test_versions_in_rising_order_are_the_base_symbol_and_its_revisions() -> None:
    entries = tabulate([RELEASE]).cuda
    assert {(e.symbol, e.name, e.version, e.stream) for e in entries} == {
        ("cuMemAlloc", "cuMemAlloc", 2000, "NONE"),
        ("cuMemAlloc_v2", "cuMemAlloc", 3020, "NONE"),
        ("cuMemcpy", "cuMemcpy", 4000, "LEGACY"),
        ("cuMemcpy_ptds", "cuMemcpy", 7000, "PER_THREAD"),
        ("cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync", 2000, "LEGACY"),
        ("cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync", 3020, "LEGACY"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync", 7000, "PER_THREAD"),
        ("cuCtxDetach", "cuCtxDetach", 2000, "NONE"),
    }


def test_a_tenth_revision_comes_after_the_ninth() -> None:
    declared = {f"cuX_v{n}" for n in range(2, 12)} | {"cuX"}
    entries = symbols.match_versions(declared, {("cuX", "", 1000 * n) for n in range(1, 12)})
    assert {e.symbol: e.version for e in entries}["cuX_v10"] == 10_000


def test_a_symbol_without_a_version_is_refused_by_name() -> None:
    with pytest.raises(symbols.HeaderError, match=r"cuMemAlloc: symbols .*cuMemAlloc_v2"):
        symbols.match_versions({"cuMemAlloc", "cuMemAlloc_v2"}, {("cuMemAlloc", "", 2000)})


def test_two_releases_that_disagree_on_a_version_are_refused() -> None:
    other = CUDA_TYPEDEFS_H.replace("cuCtxDetach_v2000", "cuCtxDetach_v2010")
    later = Release("0.1", {**RELEASE.text, "cudaTypedefs.h": other})
    with pytest.raises(symbols.HeaderError, match=r"cuCtxDetach: .*versions \[2000, 2010\]"):
        tabulate([RELEASE, later])


def test_symbols_that_a_newer_release_dropped_stay_in_the_table() -> None:
    dropped = CUDA_H.replace("CUresult CUDAAPI cuCtxDetach(CUcontext ctx);", "")
    table = tabulate([RELEASE, Release("0.1", {**RELEASE.text, "cuda.h": dropped})])
    assert "cuCtxDetach" in {entry.symbol for entry in table.cuda}


def test_an_nvml_symbol_is_as_old_as_the_first_release_that_has_it() -> None:
    later = NVML_H.replace("nvmlInit_v2", "nvmlInit_v3")
    table = tabulate([RELEASE, Release("12.9", {**RELEASE.text, "nvml.h": later})])
    since = {"nvmlInit": 0, "nvmlInit_v2": 0, "nvmlInit_v3": 12090, "nvmlErrorString": 0}
    assert table.nvml == since


def test_an_enumerations_deprecated_synonyms_are_left_out() -> None:
    assert symbols.enumerators(CUDA_H, "CUdevice_attribute_enum") == {
        8: "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK",
        10: "CU_DEVICE_ATTRIBUTE_WARP_SIZE",
    }


def test_a_header_without_the_enumeration_is_refused() -> None:
    with pytest.raises(symbols.HeaderError, match="no enum nvmlReturn_enum"):
        symbols.enumerators(CUDA_H, "nvmlReturn_enum")


def test_a_wheel_in_the_cache_is_read_without_downloading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "a_b-1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("nvidia/cu13/include/cuda.h", CUDA_H)
        archive.writestr("nvidia/cu13/include/crt/host_defines.h", "not ours")
        archive.writestr("a_b-1.2.dist-info/METADATA", "")
    monkeypatch.setattr(headers, "RELEASES", {"1.2": ("a-b==1.2",)})
    monkeypatch.setattr(headers, "download", lambda *_: pytest.fail("went to the index"))
    assert [*headers.releases(tmp_path)] == [Release("1.2", {"cuda.h": CUDA_H})]


def test_lines_come_in_order_of_name_or_value_whatever_the_headers_order() -> None:
    nvml = dict.fromkeys(("nvmlB", "nvmlC", "nvmlA"), 11080)
    texts = render(Table(nvml=nvml, cuda_results={2: "B", 10: "C", 1: "A"}))
    assert re.findall(r"nvml[A-C]", texts["nvml.inc"]) == ["nvmlA", "nvmlB", "nvmlC"]
    assert re.findall(r", (\d+),", texts["cuda_result.inc"]) == ["1", "2", "10"]


def test_a_stale_file_is_shown_line_by_line(tmp_path: Path) -> None:
    texts = render(tabulate([RELEASE]))
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert differences(tmp_path, texts) == ""
    (tmp_path / "nvml.inc").write_text(texts["nvml.inc"].replace("nvmlInit_v2", "nvmlInit_v3"))
    shown = differences(tmp_path, texts)
    assert "-NVML_SYMBOL(nvmlInit_v3, 0)\n+NVML_SYMBOL(nvmlInit_v2, 0)\n" in shown
    assert "cuda.inc" not in shown


def test_a_file_that_is_not_there_is_shown_whole(tmp_path: Path) -> None:
    assert "+NVML_SYMBOL(nvmlInit, 0)\n" in differences(tmp_path, render(tabulate([RELEASE])))


def test_versions_of_a_name_rise_and_so_do_their_revisions(lines: list[Line]) -> None:
    groups: dict[tuple[str, bool], list[Line]] = defaultdict(list)
    for line in lines:
        groups[line.name, line.stream == "PER_THREAD"].append(line)
    for group in groups.values():
        for older, newer in pairwise(group):
            assert older.version < newer.version
            assert symbols.split(older.symbol)[1] < symbols.split(newer.symbol)[1]


def test_the_stream_follows_from_the_symbols_suffix(lines: list[Line]) -> None:
    names_with_per_thread = {line.name for line in lines if line.stream == "PER_THREAD"}
    for line in lines:
        name, _, suffix = symbols.split(line.symbol)
        assert name == line.name
        assert (suffix != "") == (line.stream == "PER_THREAD")
        assert (line.stream == "NONE") == (line.name not in names_with_per_thread)
