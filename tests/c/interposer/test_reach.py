# SPDX-License-Identifier: Apache-2.0
"""Every way in which a program reaches the driver leads through the filter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpushare import abi
from libhook.table import coverage, elf

from .conftest import HERE, compile_c
from .container import ProgramContainer, program
from .tenant import MIB, receive

LOOKUPS = (
    "dlopen", "global", "deepbind", "dlmopen", "absolute", "dlvsym", "procaddress",
    "procaddress-per-thread", "procaddress-of-procaddress", "procaddress-v1",
)  # fmt: skip
LOOKUPS_C = str(HERE / "lookups.c")


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_a_programs_quota_is_enforced(
    lookup: str, container: ProgramContainer, tmp_path: Path
) -> None:
    program = compile_c(tmp_path / "reach", "reach.c", LOOKUPS_C)
    container.env["LIBCUDA"] = str(container.libraries / "libcuda.so.1")
    done = container.run(program, lookup)
    quota = 100 * MIB
    assert (done.stdout.split(), done.stderr) == ([str(quota), str(quota), "2", str(quota)], "")


def test_a_program_linked_against_the_filter(container: ProgramContainer, tmp_path: Path) -> None:
    library = container.libraries / "libcuda.so.1"
    program = compile_c(tmp_path / "linked", "reach.c", LOOKUPS_C, "-DLINKED", str(library))
    assert container.run(program, "linked").stdout.split()[2] == "2"


def test_a_symbol_newer_than_the_table_by_dlsym(fake: ProgramContainer) -> None:
    assert fake.says("value = c_int()", "cu.cuTomorrow(byref(value))", "say(value.value)") == [42]


def test_a_name_newer_than_the_table_by_lookup(fake: ProgramContainer) -> None:
    said = fake.says(
        "call('cuInit', 0)",
        "result, address, status = proc_address('cuTomorrow', 99000)",
        "value = c_int()",
        "ctypes.CFUNCTYPE(c_int, c_void_p)(address)(ctypes.addressof(value))",
        "say(result, status, value.value)",
    )
    assert said == [0, 0, 42]


def test_an_unclassified_name_is_reported_once(fake: ProgramContainer) -> None:
    with fake.tenant.listen() as listener:
        lines = ["call('cuInit', 0)", "for _ in range(3): proc_address('cuTomorrow', 99000)"]
        process = fake.start(
            sys.executable, "-c", program(*lines, "proc_address('cuMemFree', 99000)")
        )
        connection, _ = listener.accept()
        with process, connection:
            received = []
            while message := receive(connection):
                received.append((message.type, message.level, message.text))
    text = (
        "driver function cuTomorrow is unknown to gpushare and was not interposed; "
        "its allocations are measured"
    )
    assert received == [(abi.MESSAGE_HELLO, 0, ""), (abi.MESSAGE_LOG, 4, text)]


def test_unclassified_names_are_reported_up_to_a_bound(fake: ProgramContainer) -> None:
    """The fake driver answers to cuTomorrow_N for any N."""
    fake.env["GPUSHARE_LOG"] = "warning"
    done = fake.run(
        sys.executable, "-c",
        program(
            "found = [proc_address(f'cuTomorrow_{n}', 99000)[0] for n in range(100)]", "say(found)"
        ),
    )  # fmt: skip
    assert done.stdout == f"{[[0] * 100]}\n"
    assert done.stderr.count("gpushare: driver function cuTomorrow_") == 64


def test_an_exported_name_that_passes_is_no_news(fake: ProgramContainer) -> None:
    """A driver that answers to a name with its suffix."""
    fake.env["GPUSHARE_LOG"] = "warning"
    done = fake.run(
        sys.executable, "-c", program("say(proc_address('cuStreamDestroy_v2', 13000)[0])")
    )
    assert (done.stdout, done.stderr) == ("[0]\n", "")


def test_a_newer_form_of_a_mediated_function_is_not_found(fake: ProgramContainer) -> None:
    fake.env["GPUSHARE_LOG"] = "error"
    done = fake.run(
        sys.executable, "-c",
        "import ctypes; cu = ctypes.CDLL('libcuda.so.1'); a = ctypes.c_void_p(7);"
        "s = ctypes.c_int();"
        "print(cu.cuGetProcAddress_v2(b'cuMemAlloc', ctypes.byref(a), 99000,"
        " ctypes.c_uint64(0), ctypes.byref(s)), a.value, s.value)",
    )  # fmt: skip
    assert done.stdout.split() == ["500", "None", "1"]
    assert done.stderr == (
        "gpushare: refused cuMemAlloc of CUDA 99000: it is newer than this version of gpushare\n"
    )


def test_a_newer_program_gets_the_form_that_both_know(fake: ProgramContainer) -> None:
    said = fake.says(
        "result, address, status = proc_address('cuMemFree', 99000)",
        "say(result, address == address_of('cuMemFree_v2'))",
    )
    assert said == [0, True]


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuMemAllocAsync", 13000, 0, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 13000, 1, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 13000, 2, "cuMemAllocAsync_ptsz"),
        ("cuMemAlloc", 13000, 2, "cuMemAlloc_v2"),
        ("cuGetProcAddress", 13000, 0, "cuGetProcAddress_v2"),
        ("cuGetProcAddress", 11080, 2, "cuGetProcAddress"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v2"),  # all that this driver has
        ("cuMemAlloc_v2", 13000, 0, "cuMemAlloc_v2"),  # a name that is not in the table
    ],
)
def test_lookups_answer_the_interposers_function(
    name: str, version: int, flags: int, symbol: str, fake: ProgramContainer
) -> None:
    said = fake.says(
        f"result, address, status = proc_address('{name}', {version}, {flags})",
        f"say(result, address == address_of('{symbol}'))",
    )
    assert said == [0, True]


@pytest.mark.parametrize("name", ["cuNoSuchThing", "", "cuMemFreeX", "cuStreamCreate"])
def test_a_name_that_the_driver_does_not_know_is_not_found(
    name: str, fake: ProgramContainer
) -> None:
    said = fake.says(f"say(*proc_address('{name}'))")
    assert said == [500, None, 1]


def test_a_symbol_missing_from_the_driver_is_absent(fake: ProgramContainer) -> None:
    said = fake.says("say(*[hasattr(cu, name) for name in ('cuMemAlloc_v2', 'cuCtxCreate_v4')])")
    assert said == [True, False]


@pytest.mark.parametrize("mode", [abi.GATE_OPEN, abi.GATE_METERED, abi.GATE_CLOSED])
def test_arguments_come_through_the_gate(mode: int, fake: ProgramContainer) -> None:
    """A closed gate without a scheduler passes a tenant that has no share."""
    fake.tenant.set_u32(0, abi.GRANT_CARD_GATE + abi.GATE_MODE, mode)
    said = fake.says(
        "start()", "say(cu.cuLaunchKernel(None, 1, 2, 3, 4, 5, 6, 7, None, None, None))"
    )
    assert said == [0]


@pytest.mark.parametrize("symbol", ["cuMemMapArrayAsync", "cuLogicalEndpointCreate"])
def test_a_refused_function_is_not_supported_and_reported_once(
    symbol: str, newest: ProgramContainer
) -> None:
    newest.env["GPUSHARE_LOG"] = "warning"
    done = newest.run(
        sys.executable, "-c",
        program("start()", f"say(*[cu.{symbol}(None, 1, None) for _ in range(3)])"),
    )  # fmt: skip
    assert done.stdout == "[801, 801, 801]\n"
    assert done.stderr.startswith(f"gpushare: {symbol} is refused: ")
    assert done.stderr.count("\n") == 1


def test_a_refused_function_is_reported_as_missing_by_queries(
    fake: ProgramContainer,
) -> None:
    sparse, deferred, endpoint, warp_size = 112, 121, 153, 10
    said = fake.says(
        "start()",
        "def ask(attribute):",
        "    value = c_int(-1)",
        "    call('cuDeviceGetAttribute', byref(value), attribute, 0)",
        "    return value.value",
        f"say(*map(ask, {[sparse, deferred, endpoint, warp_size]}))",
    )
    assert said == [0, 0, 0, warp_size]


def test_the_filters_do_with_each_call_as_the_table_says(fake_filters: Path) -> None:
    lines = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    filters = [elf.read(fake_filters / name) for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    assert list(coverage.unlike(lines, filters)) == []
