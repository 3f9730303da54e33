# SPDX-License-Identifier: Apache-2.0
"""Physical memory is charged for as long as it is there, whatever two threads do to one piece.

The fake driver lets the other thread act when it has done what it was asked for, and before the
filter hears of it.
"""

from __future__ import annotations

import pytest

from .conftest import ProgramContainer
from .test_multicast import SETUP

RACES = (
    *SETUP,
    "behind = ctypes.CDLL({driver!r})",
    "act = ctypes.CFUNCTYPE(None)",
    "kept = []",
    "def meanwhile(*steps):",
    "    kept.append(act(lambda: [step() for step in steps] and None))",
    "    c_void_p.in_dll(behind, 'fake_meanwhile').value = ctypes.cast(kept[-1], c_void_p).value",
)
#: What happens to 40 MiB, and how much is charged then, in MiB.
STORIES = {
    "released while it is mapped": (
        [
            "piece, where = create(40 * MIB), reserve_address(40 * MIB)",
            "meanwhile(lambda: release(piece))",
            "map_memory(where, 40 * MIB, piece)",
        ],
        40,
    ),
    "released while it is mapped, then unmapped": (
        [
            "piece, where = create(40 * MIB), reserve_address(40 * MIB)",
            "meanwhile(lambda: release(piece))",
            "map_memory(where, 40 * MIB, piece)",
            "unmap(where, 40 * MIB)",
        ],
        0,
    ),
    "unmapped while it is retained": (
        [
            "piece = create(40 * MIB)",
            "where = mapped(piece, 40 * MIB)",
            "release(piece)",
            "meanwhile(lambda: unmap(where, 40 * MIB))",
            "retain(where)",
        ],
        40,
    ),
    "unmapped while it is retained, then released": (
        [
            "piece = create(40 * MIB)",
            "where = mapped(piece, 40 * MIB)",
            "release(piece)",
            "meanwhile(lambda: unmap(where, 40 * MIB))",
            "release(retain(where))",
        ],
        0,
    ),
    "another mapped where one is unmapped": (
        [
            "small, piece = create(2 * MIB), create(40 * MIB)",
            "where = mapped(small, 2 * MIB)",
            "release(small)",
            "meanwhile(lambda: map_memory(where, 40 * MIB, piece), lambda: release(piece))",
            "unmap(where, 2 * MIB)",
        ],
        40,
    ),
    "the same mapped again where it is unmapped": (
        [
            "piece = create(40 * MIB)",
            "where = mapped(piece, 40 * MIB)",
            "meanwhile(lambda: map_memory(where, 40 * MIB, piece), lambda: release(piece))",
            "unmap(where, 40 * MIB)",
        ],
        40,
    ),
    "released while it is bound": (
        [
            "group, piece = multicast(), create(40 * MIB)",
            "meanwhile(lambda: release(piece))",
            "bind = (c_size_t(0), c_uint64(piece), c_size_t(0), size, c_uint64(0))",
            "call('cuMulticastBindMem', c_uint64(group), *bind)",
        ],
        40,
    ),
    "unmapped while its address is bound": (
        [
            "group, piece = multicast(), create(40 * MIB)",
            "where = mapped(piece, 40 * MIB)",
            "release(piece)",
            "meanwhile(lambda: unmap(where, 40 * MIB))",
            "bind = (c_size_t(0), c_uint64(where), size, c_uint64(0))",
            "call('cuMulticastBindAddr', c_uint64(group), *bind)",
        ],
        40,
    ),
    "bound again while it is unbound": (
        [
            "group, piece = multicast(), create(40 * MIB)",
            "bind = (c_size_t(0), c_uint64(piece), c_size_t(0), size, c_uint64(0))",
            "again = lambda: call('cuMulticastBindMem', c_uint64(group), *bind)",
            "again()",
            "meanwhile(again, lambda: release(piece))",
            "unbind(group)",
        ],
        40,
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_another_thread_acts_meanwhile(story: str, fake: ProgramContainer) -> None:
    lines, charged = STORIES[story]
    driver = str(fake.libraries.parent / "driver" / "libcuda.so.1")
    setup = [line.format(driver=driver) if "{driver" in line else line for line in RACES]
    assert fake.says(*setup, *lines, "say(used())") == [charged]


def test_a_bind_where_another_was_lets_go_of_that(fake: ProgramContainer) -> None:
    bind = "call('cuMulticastBindMem', c_uint64(group), *what(piece))"
    said = fake.says(
        *SETUP,
        "what = lambda piece: (c_size_t(0), c_uint64(piece), c_size_t(0), size, c_uint64(0))",
        "group, piece = multicast(), create(40 * MIB)",
        bind,
        "release(piece)",
        "piece = create(40 * MIB)",  # unbound, the driver may do so, with a range around it
        bind,
        "release(piece)",
        "say(used())",
    )
    assert said == [40]
