# SPDX-License-Identifier: Apache-2.0
"""A program that changes, during a call, what the call reads or has written wins nothing by it."""

from __future__ import annotations

import pytest

from .conftest import ProgramContainer

SETUP = (
    "start()",
    "act = ctypes.CFUNCTYPE(None)",
    "kept = []",
    "def meanwhile(step):",
    "    kept.append(act(lambda: step() and None))",
    "    c_void_p.in_dll(behind, 'fake_meanwhile').value = ctypes.cast(kept[-1], c_void_p).value",
    "large, pointer, pitch = alloc(40 * MIB), c_uint64(), c_size_t()",
    "def overwrite():",
    "    pointer.value = large",
)
CALLS = {
    "cuMemAlloc_v2": "c_size_t(2 * MIB)",
    "cuMemAllocManaged": "c_size_t(2 * MIB), 1",
    "cuMemAllocAsync": "c_size_t(2 * MIB), None",
    "cuMemAllocPitch_v2": "byref(pitch), c_size_t(MIB), c_size_t(2), 4",
}


def filtered(fake: ProgramContainer) -> str:
    """Return the line that opens the driver behind the filter."""
    return f"behind = ctypes.CDLL({str(fake.libraries.parent / 'driver' / 'libcuda.so.1')!r})"


@pytest.mark.parametrize("name", CALLS)
def test_another_thread_overwrites_the_pointer(name: str, fake: ProgramContainer) -> None:
    said = fake.says(
        filtered(fake), *SETUP,
        "meanwhile(overwrite)",
        f"call({name!r}, byref(pointer), {CALLS[name]})",
        "say(100 - memory()[0] // MIB)",
    )  # fmt: skip
    assert said == [42]


def test_another_thread_overwrites_the_pitch(fake: ProgramContainer) -> None:
    said = fake.says(
        filtered(fake), *SETUP,
        "def narrow():",
        "    pitch.value = 512",
        "meanwhile(narrow)",
        f"call('cuMemAllocPitch_v2', byref(pointer), {CALLS['cuMemAllocPitch_v2']})",
        "say(100 - memory()[0] // MIB)",
    )  # fmt: skip
    assert said == [42]


def test_another_thread_moves_physical_memory_to_the_card(fake: ProgramContainer) -> None:
    said = fake.says(
        filtered(fake), *SETUP,
        "properties = Properties(1, 0, HOST_NUMA, 0, None, 0)",
        "def move():",
        "    properties.location_type = DEVICE",
        "meanwhile(move)",
        "call('cuMemCreate', byref(pointer), c_size_t(40 * MIB), byref(properties), c_uint64(0))",
        "say(c_int.in_dll(behind, 'fake_location').value == DEVICE, 100 - memory()[0] // MIB)",
    )  # fmt: skip
    assert said == [False, 40]
