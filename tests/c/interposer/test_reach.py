# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Every way in which a program reaches the driver leads through the filter."""

from __future__ import annotations

import pytest

from gpushare import abi
from libhook.table import coverage, elf

from .client import *
from .container import ProgramContainer, program
from .inside import inside
from .rank import Rank
from .tenant import receive

#: How programs open the driver before they look up its functions; linked, they have it globally.
OPENED = {
    "by name": "CDLL('libcuda.so.1')",
    "by path": "CDLL(os.environ['LIBCUDA'])",
    "globally": "CDLL('libcuda.so.1', ctypes.RTLD_GLOBAL) and CDLL(None)",
    "linked": "CDLL(None)",
    "deepbind": "CDLL('libcuda.so.1', os.RTLD_NOW | os.RTLD_DEEPBIND)",
    "dlmopen": "CDLL('', handle=dlmopen(ctypes.c_long(-1), b'libcuda.so.1', os.RTLD_NOW))",
}
IS_THE_FILTER = """
file = (c_void_p * 4)()
def outside(name):
    assert ctypes.CDLL(None).dladdr(c_void_p(address_of(name)), file)
    return ctypes.string_at(file[0]).decode() != os.environ["LIBCUDA"]
"""


@pytest.mark.parametrize("how", OPENED)
def test_however_the_driver_is_opened_it_is_the_filter(how: str, newest: ProgramContainer) -> None:
    if how == "linked":
        newest.env["LD_PRELOAD"] = "libcuda.so.1"
    names = [symbol for symbol in coverage.exported() if symbol.startswith("cu")]
    said = newest.says(
        "CDLL, dlmopen = ctypes.CDLL, ctypes.CDLL(None).dlmopen",
        "dlmopen.restype = c_void_p",
        f"cu.library = {OPENED[how]}",
        IS_THE_FILTER,
        "start()",
        f"around = [name for name in {names} if hasattr(cu, name) and outside(name)]",
        "say(around, memory(), result_of(alloc, 100 * MIB + 1), alloc(MIB) > 0, charged())",
    )
    assert said == [[], [100 * MIB, 100 * MIB], OUT_OF_MEMORY, True, MIB]


@inside("fake")
def test_a_symbol_newer_than_the_table_is_the_driver_s() -> None:
    call("cuInit", 0)
    value = c_int()
    call("cuTomorrow", byref(value))
    assert value.value == 42
    result, address, status = proc_address("cuTomorrow", 99000)
    found = c_int()
    assert address
    ctypes.CFUNCTYPE(c_int, c_void_p)(address)(ctypes.addressof(found))
    assert (result, status, found.value) == (0, 0, 42)


def test_an_unclassified_name_is_reported_once(fake: ProgramContainer) -> None:
    with fake.tenant.listen() as listener:
        rank = Rank(fake, lambda: call("cuInit", 0))
        rank.ask("[proc_address('cuTomorrow', 99000) for _ in range(3)]")
        rank.ask("proc_address('cuMemFree', 99000)")
        rank.end()
        connection, _ = listener.accept()
        with connection:
            received = []
            while message := receive(connection):
                received.append((message.type, message.level, message.text))
    text = (
        "driver function cuTomorrow is unknown to gpushare and was not interposed; "
        "its allocations are measured"
    )
    assert received == [(abi.MESSAGE_LOG, 4, text)]


def said_at(level: str, container: ProgramContainer, *lines: str) -> tuple[str, str]:
    """Return what a program writes to its output, and the library to its standard error."""
    container.env["GPUSHARE_LOG"] = level
    done = container.run(sys.executable, "-c", program(*lines))
    return done.stdout, done.stderr


def test_a_newer_form_of_a_mediated_function_is_not_found(fake: ProgramContainer) -> None:
    """As a name that the driver does not have: each form has its own answer."""
    asked = "(b'cuMemAlloc', byref(a), 99000, c_uint64(0), byref(s))"
    refused = (
        "gpushare: refused cuMemAlloc of CUDA 99000: it is newer than this version of gpushare\n"
    )
    for form, answer in (("_v2", "[0, null, 1]\n"), ("", "[500, 7, 9]\n")):
        lines = (
            "a, s = c_void_p(7), c_int(9)",
            f"say(cu.cuGetProcAddress{form}{asked}, a.value, s.value)",
        )
        assert said_at("error", fake, *lines) == (answer, refused)


#: (name, version, flags), and the symbol whose address a program gets.
ANSWERS = {
    ("cuMemFree", 99000, 0): "cuMemFree_v2",  # the form that both know
    ("cuMemAlloc", 13000, 0): "cuMemAlloc_v2",
    ("cuMemAlloc", 13000, 2): "cuMemAlloc_v2",
    ("cuGetProcAddress", 13000, 0): "cuGetProcAddress_v2",
    ("cuGetProcAddress", 11080, 2): "cuGetProcAddress",
    ("cuCtxCreate", 13000, 0): "cuCtxCreate_v2",  # all that this driver has
    ("cuMemAlloc_v2", 13000, 0): "cuMemAlloc_v2",  # a name that is not in the table
}


@inside("fake")
def test_lookups_answer_the_interposers_function() -> None:
    for asked, symbol in ANSWERS.items():
        assert proc_address(*asked)[:2] == (0, address_of(symbol)), asked
    for name in ("cuNoSuchThing", "", "cuMemFreeX", "cuStreamCreate"):
        assert proc_address(name) == (0, None, 1), name
    assert [hasattr(cu, name) for name in ("cuMemAlloc_v2", "cuCtxCreate_v4")] == [True, False]


@pytest.mark.parametrize("mode", [abi.GATE_OPEN, abi.GATE_METERED, abi.GATE_CLOSED])
@inside("fake")
def test_arguments_come_through_the_gate(mode: int, fake: ProgramContainer) -> None:
    """A closed gate without a scheduler passes a tenant that has no share."""
    fake.tenant.set_u32(0, abi.GRANT_CARD_GATE + abi.GATE_MODE, mode)
    start()
    call("cuLaunchKernel", None, 1, 2, 3, 4, 5, 6, 7, None, None, None)


def test_a_refused_function_is_not_supported_and_reported_once(newest: ProgramContainer) -> None:
    symbols = ("cuMemMapArrayAsync", "cuLogicalEndpointCreate")
    calls = f"[getattr(cu, name)(None, 1, None) for name in {symbols} for _ in range(3)]"
    said, reported = said_at("warning", newest, "start()", f"say({calls})")
    assert said == f"{[[801] * 6]}\n"
    assert [line.split()[1] for line in reported.splitlines()] == list(symbols)


@inside("fake")
def test_a_refused_function_is_reported_as_missing_by_queries() -> None:
    start()
    sparse, deferred, endpoint, warp_size = 112, 121, 153, 10
    for attribute in (sparse, deferred, endpoint, warp_size):
        value = c_int(-1)
        call("cuDeviceGetAttribute", byref(value), attribute, 0)
        assert value.value == (attribute if attribute == warp_size else 0)


def test_the_filters_do_with_each_call_as_the_table_says(fake_filters: Path) -> None:
    lines = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    filters = [elf.read(fake_filters / name) for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    assert list(coverage.unlike(lines, filters)) == []
