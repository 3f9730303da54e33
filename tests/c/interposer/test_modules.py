# SPDX-License-Identifier: Apache-2.0
"""What an image declares counts against the quota when it is loaded, however it is loaded."""

from __future__ import annotations

import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest

from gpushare import abi

from .conftest import ProgramContainer, SimulatedContainer
from .simulator_figures import TRUTH, open_behind
from .tenant import MIB

PTXAS = Path(sysconfig.get_path("purelib")) / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
HEAD = ".version 7.0\n.target sm_75\n.address_size 64\n"
MODULES = (
    f"HEAD = {HEAD!r}",
    "def image(size, managed=0):",
    "    text = HEAD",
    "    if size:",
    "        text += f'.visible .global .align 4 .b8 table[{size}];\\n'",
    "    if managed:",
    "        text += f'.visible .global .attribute(.managed) .b8 both[{managed}];\\n'",
    "    return text.encode() + b'\\0'",
    "def file(data):",
    "    with open(os.environ['IMAGE'], 'wb') as written:",
    "        written.write(data)",
    "    return os.environ['IMAGE'].encode()",
    "def loaded(name, *arguments):",
    "    handle = c_void_p()",
    "    call(name, byref(handle), *arguments)",
    "    return handle",
    "def load(data): return loaded('cuModuleLoad', file(data))",
    "def load_data(data): return loaded('cuModuleLoadData', data)",
    "def load_data_ex(data): return loaded('cuModuleLoadDataEx', data, 0, None, None)",
    "def load_fat(data): return loaded('cuModuleLoadFatBinary', data)",
    "NO_OPTIONS = (None, None, 0, None, None, 0)",
    "def library(data): return loaded('cuLibraryLoadData', data, *NO_OPTIONS)",
    "def library_file(data): return loaded('cuLibraryLoadFromFile', file(data), *NO_OPTIONS)",
    "def unload(module): call('cuModuleUnload', module)",
    "def unload_library(library): call('cuLibraryUnload', library)",
    "def place(of):",
    "    pointer, size = c_uint64(), c_size_t()",
    "    call('cuLibraryGetGlobal', byref(pointer), byref(size), of, b'table')",
    *TRUTH,
)
WAYS = ("load", "load_data", "load_data_ex", "load_fat", "library", "library_file")


@pytest.fixture
def modules(simulated: ProgramContainer, tmp_path: Path) -> ProgramContainer:
    simulated.env["IMAGE"] = str(tmp_path / "image")
    return open_behind(simulated)


@pytest.mark.parametrize("way", WAYS)
def test_an_image_fits_to_the_last_byte_and_goes_back_exactly(
    way: str, modules: ProgramContainer
) -> None:
    end = "unload_library" if way.startswith("library") else "unload"
    said = modules.says(
        *MODULES,
        "start()",
        f"over = result_of({way}, image(100 * MIB + 1))",
        f"whole = {way}(image(100 * MIB))",
        "full = memory()[0]",
        f"more = [result_of({way}, image(1)), result_of({way}, image(0)), result_of(alloc, 1)]",
        f"{end}(whole)",
        "say(over, full, more, memory()[0])",
    )
    assert said == [2, 0, [2, 0, 2], 100 * MIB]


@pytest.mark.parametrize("way", WAYS[:4])
def test_the_charge_is_the_drivers_use(way: str, modules: ProgramContainer) -> None:
    said = modules.says(
        *MODULES,
        "start()",
        "taken = truth()",
        f"handle = {way}(image(60 * MIB))",
        "say(memory()[0], truth() - taken)",
    )
    assert said == [40 * MIB, 60 * MIB]


def test_the_end_of_a_context_ends_its_modules(modules: ProgramContainer) -> None:
    said = modules.says(
        *MODULES,
        "start()",
        "taken = truth()",
        "other = context()",
        "load_data(image(30 * MIB, 20 * MIB)), place(library(image(10 * MIB)))",
        "before = memory()[0]",
        "call('cuCtxDestroy_v2', other)",
        "context()",
        "say(before, memory()[0], truth() - taken)",
    )
    assert said == [40 * MIB, 100 * MIB, 0]


def test_managed_variables_are_of_the_kind_that_the_driver_does_not_count(
    modules: ProgramContainer,
) -> None:
    said = modules.says(
        *MODULES,
        "start()",
        "own, other = load_data(image(30 * MIB, 20 * MIB)), load_data(image(0, 10 * MIB))",
        "over = result_of(load_data, image(30 * MIB, 10 * MIB + 1)), memory()[0]",
        "unload(other)",
        "say(over, memory()[0], os.getpid())",
        "os._exit(0)",
    )
    assert said[:2] == [[2, 40 * MIB], 50 * MIB]
    assert modules.tenant.kind(abi.KIND_MODULE) == 30 * MIB
    assert modules.tenant.kind(abi.KIND_MANAGED) == 20 * MIB


def test_a_failed_load_and_a_failed_unload_leave_no_trace(
    fake: ProgramContainer, tmp_path: Path
) -> None:
    fake.env["IMAGE"] = str(tmp_path / "image")
    fake.env["BEHIND"] = str(fake.libraries.parent / "driver" / "libcuda.so.1")
    said = fake.says(
        *MODULES,
        "start()",
        "os.environ['FAKE_CUDA_FAIL'] = '1'",
        "failed = result_of(load, image(50 * MIB)), memory()[0]",
        "del os.environ['FAKE_CUDA_FAIL']",
        "module = load(image(50 * MIB))",
        "none = result_of(unload, None), memory()[0]",
        "say(failed, none)",
    )
    assert said == [[200, 100 * MIB], [400, 50 * MIB]]


def test_an_image_that_makes_no_sense_is_the_driver_s_to_refuse(modules: ProgramContainer) -> None:
    said = modules.says(
        *MODULES,
        "start()",
        "elf = b'\\x7fELF\\x02' + b'\\xff' * 200",
        "fat = bytes.fromhex('50ed55ba') + b'\\xff' * 200",
        "wrapper = bytes.fromhex('b1436246') + b'\\1\\0\\0\\0' + b'\\0\\x10' + b'\\0' * 30",
        "results = [result_of(load_data, data) for data in (elf, fat, wrapper, b'', b'hello')]",
        "say([result != 0 for result in results], result_of(load_data, None), memory()[0])",
    )
    assert said == [[True] * 5, 1, 100 * MIB]


@pytest.mark.needs("clients")  # ptxas is one of them
@pytest.mark.parametrize(("mode", "is_charged"), [("1", True), ("2", False)])
def test_code_is_charged_where_it_comes_with_its_module(
    mode: str, is_charged: bool, fake: ProgramContainer, tmp_path: Path
) -> None:
    source, cubin = tmp_path / "k.ptx", tmp_path / "k.cubin"
    kernel = ".visible .entry k(.param .u64 p) { ret; }\n"
    source.write_text(HEAD.replace("75", "90").replace("7.0", "8.0") + kernel)
    subprocess.run([PTXAS, "-arch=sm_90", "-o", cubin, source], check=True)
    fake.env |= {"IMAGE": str(cubin), "FAKE_CUDA_LOADING": mode}
    said = fake.says(
        "start()",
        "module = c_void_p()",
        "call('cuModuleLoad', byref(module), os.environ['IMAGE'].encode())",
        "say(100 * MIB - memory()[0])",
    )
    (charged,) = said
    assert isinstance(charged, int)
    elf = cubin.read_bytes()
    assert (charged > _constants(elf)) == is_charged
    assert charged >= _constants(elf)


def _constants(elf: bytes) -> int:
    """Bytes of the sections .nv.constant*, as the ELF header's tables tell them."""
    (offset,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<3H", elf, 58)
    sections = [struct.unpack_from("<2I4Q", elf, offset + size * i) for i in range(count)]
    table = elf[sections[names][4] :]
    return sum(
        section[5] for section in sections if table[section[0] :].startswith(b".nv.constant")
    )


def test_a_library_without_a_context_is_charged_where_it_is_first_used(
    modules: ProgramContainer,
) -> None:
    said = modules.says(
        *MODULES,
        "call('cuInit', 0)",
        "whole, more = library(image(60 * MIB)), library(image(50 * MIB))",
        "context()",
        "before, taken = memory()[0], truth()",
        "place(whole), place(whole)",
        "used, truly = memory()[0], truth() - taken",
        "over = result_of(place, more)",
        "unload_library(whole)",
        "say(before, used, truly, over, memory()[0], result_of(place, more))",
    )
    assert said == [100 * MIB, 40 * MIB, 60 * MIB, 2, 100 * MIB, 0]


def test_a_library_is_charged_once_for_each_card_that_uses_it(
    simulated_container: SimulatedContainer, tmp_path: Path
) -> None:
    container = open_behind(simulated_container(2, [0, 1]))
    container.env["IMAGE"] = str(tmp_path / "image")
    said = container.says(
        *MODULES,
        "call('cuInit', 0)",
        "first = context(0)",
        "both = library(image(30 * MIB))",
        "there = memory()[0]",
        "context(1)",
        "before = memory()[0]",
        "module = c_void_p()",
        "call('cuLibraryGetModule', byref(module), both)",
        "call('cuLibraryGetModule', byref(module), both)",
        "used = memory()[0]",
        "unload_library(both)",
        "after = memory()[0]",
        "call('cuCtxSetCurrent', first)",
        "say(there, before, used, after, memory()[0])",
    )
    assert said == [70 * MIB, 100 * MIB, 70 * MIB, 100 * MIB, 100 * MIB]


def test_a_pipe_is_left_to_the_driver(fake: ProgramContainer, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    fake.env["IMAGE"] = str(pipe)
    said = fake.says(
        "start()",
        "os.mkfifo(os.environ['IMAGE'])",
        "end = os.open(os.environ['IMAGE'], os.O_RDWR)",
        "os.write(end, b'all of it')",
        "module = c_void_p()",
        "result = result_of(call, 'cuModuleLoad', byref(module), os.environ['IMAGE'].encode())",
        "say(result, os.read(end, 99).decode(), memory()[0])",
    )
    assert said == [0, "all of it", 100 * MIB]
