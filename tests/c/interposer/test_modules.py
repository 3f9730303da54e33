# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""What an image declares counts against the quota when it is loaded, however it is loaded."""

from __future__ import annotations

import struct
import subprocess
import sysconfig

import pytest

from gpushare import abi

from .client import *
from .conftest import SimulatedContainer
from .container import ProgramContainer
from .inside import inside, run_inside

PTXAS = Path(sysconfig.get_path("purelib")) / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"


@inside()
def test_without_room_what_declares_nothing_is_loaded() -> None:
    start()
    before = taken()
    module(image(100 * MIB))
    assert charged() == taken() - before == 100 * MIB
    assert result_of(module, image(1)) == OUT_OF_MEMORY
    module(image(0))


@inside()
def test_managed_variables_are_of_the_kind_that_the_driver_does_not_count(
    simulated: ProgramContainer,
) -> None:
    start()
    module(image(30 * MIB, 20 * MIB))
    other = module(image(0, 10 * MIB))
    assert result_of(module, image(30 * MIB, 10 * MIB + 1)) == OUT_OF_MEMORY
    assert charged() == 60 * MIB
    unload(other)
    assert simulated.tenant.kind(abi.KIND_MODULE) == 30 * MIB
    assert simulated.tenant.kind(abi.KIND_MANAGED) == 20 * MIB
    context()
    module(image(MIB, MIB))
    call("cuCtxDestroy_v2", current())
    assert simulated.tenant.used()[0] == 50 * MIB


@pytest.mark.needs("clients")  # ptxas is one of them
@pytest.mark.parametrize(("mode", "is_charged"), [("1", True), ("2", False)])
@inside("fake")
def test_code_is_charged_where_it_comes_with_its_module(
    mode: str, is_charged: bool, tmp_path: Path
) -> None:
    source, cubin = tmp_path / "k.ptx", tmp_path / "k.cubin"
    source.write_text(HEAD.replace("75", "90").replace("7.0", "8.0") + KERNEL)
    subprocess.run([PTXAS, "-arch=sm_90", "-o", cubin, source], check=True)
    os.environ["FAKE_CUDA_LOADING"] = mode
    start()
    made("cuModuleLoad", bytes(cubin))
    constants = _constants(cubin.read_bytes())
    assert (charged() > constants) == is_charged
    assert charged() >= constants


def _constants(elf: bytes) -> int:
    """Bytes of the sections .nv.constant*, as the ELF header's tables tell them."""
    (offset,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<3H", elf, 58)
    sections = [struct.unpack_from("<2I4Q", elf, offset + size * i) for i in range(count)]
    table = elf[sections[names][4] :]
    return sum(
        section[5] for section in sections if table[section[0] :].startswith(b".nv.constant")
    )


def test_a_library_is_charged_once_on_each_card_where_it_is_used(
    simulated_container: SimulatedContainer,
) -> None:
    def body() -> None:
        call("cuInit", 0)
        nowhere = library(image(60 * MIB))
        first = context(0)
        both, before = library(image(30 * MIB)), taken()
        assert charged() == 30 * MIB
        for _ in range(2):
            variable_of(nowhere)
        assert (charged(), taken() - before) == (90 * MIB, 60 * MIB)
        unload_library(nowhere)
        context(1)
        assert charged() == 0
        for _ in range(2):
            made("cuLibraryGetModule", both)
        assert charged() == 30 * MIB
        assert result_of(library, image(71 * MIB)) == OUT_OF_MEMORY
        unload_library(both)
        assert charged() == 0
        call("cuCtxSetCurrent", first)
        assert charged() == 0

    run_inside(simulated_container(2, [0, 1]), body)
