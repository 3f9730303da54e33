# SPDX-License-Identifier: Apache-2.0
"""Physical memory is charged for as long as the driver keeps it."""

from __future__ import annotations

import pytest

from .conftest import ProgramContainer
from .tenant import MIB

# What a program has done, and what is charged then, in MiB.
STORIES = {
    "a handle": (["h = create(4 * MIB)"], 4),
    "a handle, released": (["release(create(4 * MIB))"], 0),
    "mapped, then released": (
        ["h = create(4 * MIB)", "map_memory(p, 4 * MIB, h)", "release(h)"],
        4,
    ),
    "mapped, released, unmapped": (
        ["h = create(4 * MIB)", "map_memory(p, 4 * MIB, h)", "release(h)", "unmap(p, 4 * MIB)"],
        0,
    ),
    "mapped, unmapped": (
        ["h = create(4 * MIB)", "map_memory(p, 4 * MIB, h)", "unmap(p, 4 * MIB)"],
        4,
    ),
    "mapped twice, unmapped once": (
        [
            "h = create(4 * MIB)",
            "map_memory(p, 4 * MIB, h)",
            "map_memory(p + 4 * MIB, 4 * MIB, h)",
            "release(h)",
            "unmap(p, 4 * MIB)",
        ],
        4,
    ),
    "two pieces, unmapped at once": (
        [
            "a, b = create(4 * MIB), create(6 * MIB)",
            "map_memory(p, 4 * MIB, a)",
            "map_memory(p + 4 * MIB, 6 * MIB, b)",
            "release(a)",
            "unmap(p, 10 * MIB)",
        ],
        6,
    ),
    "retained by its address, released once": (
        [
            "h = create(4 * MIB)",
            "map_memory(p, 4 * MIB, h)",
            "other = retain(p)",
            "unmap(p, 4 * MIB)",
            "release(h)",
        ],
        4,
    ),
    "retained by its address, released twice": (
        [
            "h = create(4 * MIB)",
            "map_memory(p, 4 * MIB, h)",
            "other = retain(p)",
            "unmap(p, 4 * MIB)",
            "release(h)",
            "release(other)",
        ],
        0,
    ),
    "a release that fails": (["h = create(4 * MIB)", "result_of(release, h + 12345)"], 4),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_charge_ends_with_the_last_reference(story: str, simulated: ProgramContainer) -> None:
    lines, charged = STORIES[story]
    said = simulated.says(
        "start()", "p = reserve_address(16 * MIB)", *lines, "say(100 - memory()[0] // MIB)"
    )
    assert said == [charged]


def test_an_unmap_goes_on_behind_memory_that_is_not_ours(simulated: ProgramContainer) -> None:
    driver = simulated.libraries.parent / "driver" / "libcuda.so.1"
    said = simulated.says(
        "start()",
        "p, foreign = reserve_address(16 * MIB), c_uint64()",
        f"behind = ctypes.CDLL({str(driver)!r})",  # made past the filter, as imported memory is
        "properties = Properties(1, 0, DEVICE, 0, None, 0)",
        "size = c_size_t(4 * MIB)",
        "assert behind.cuMemCreate(byref(foreign), size, byref(properties), c_uint64(0)) == 0",
        "h = create(4 * MIB)",
        "map_memory(p, 4 * MIB, foreign.value)",
        "map_memory(p + 4 * MIB, 4 * MIB, h)",
        "release(h)",
        "unmap(p, 8 * MIB)",
        "say(memory()[0] // MIB)",
    )
    assert said == [100]


def test_mapped_memory_cannot_be_had_twice(simulated: ProgramContainer) -> None:
    said = simulated.says(
        "start()",
        "p = reserve_address(60 * MIB)",
        "h = create(60 * MIB)",
        "map_memory(p, 60 * MIB, h)",
        "release(h)",
        "say(result_of(alloc, 42 * MIB), result_of(alloc, 40 * MIB))",
    )
    assert said == [2, 0]


def test_host_memory_is_not_charged(simulated: ProgramContainer) -> None:
    said = simulated.says("start()", "result_of(create, 4 * MIB, HOST_NUMA)", "say(memory()[0])")
    assert said == [100 * MIB]
