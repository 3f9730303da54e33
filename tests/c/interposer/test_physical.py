# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Physical memory is charged for as long as a handle, a mapping or a multicast object has it.

The fake driver makes handles of imports that no process has seen, of this process's own memory too,
and lets another thread act when it has done what it was asked for: before the filter hears of it.
"""

from __future__ import annotations

import pytest

from .client import *
from .container import ProgramContainer
from .inside import inside

SIZE = 40 * MIB
#: As (what is done, what is charged then in MiB)... of a piece of 4 MiB, `h`, and addresses at `p`.
STORIES: dict[str, list[tuple[str, int]]] = {
    "unmapped before it is released": [
        ("h = create(4 * MIB); map_memory(p, 4 * MIB, h); unmap(p, 4 * MIB)", 4),
        ("result_of(release, h + 12345)", 4),
        ("release(h)", 0),
    ],
    "two pieces, unmapped at once": [
        ("a, b = create(4 * MIB), create(6 * MIB); map_memory(p, 4 * MIB, a)", 10),
        ("map_memory(p + 4 * MIB, 6 * MIB, b); release(a); unmap(p, 10 * MIB)", 6),
    ],
}


@pytest.mark.parametrize("story", STORIES)
@inside()
def test_the_charge_ends_with_the_last_reference(story: str) -> None:
    start()
    words = {**globals(), "p": reserve_address(16 * MIB)}
    for lines, mib in STORIES[story]:
        exec(lines, words)
        assert charged() == mib * MIB, lines


def multicast() -> int:
    return number("cuMulticastCreate", (c_uint64 * 4)(1, SIZE))


def import_any() -> int:
    return number("cuMemImportFromShareableHandle", None, 1)


def unbind(group: int, offset: int = 0) -> None:
    call("cuMulticastUnbind", c_uint64(group), 0, c_size_t(offset), c_size_t(SIZE))


#: How a piece that is mapped somewhere is bound to a group at an offset.
BINDS = tuple(f"cuMulticastBind{what}{form}" for what in ("Mem", "Addr") for form in ("", "_v2"))


def bind(name: str, group: int, piece: int, where: int, offset: int = 0) -> None:
    device = [0] if name.endswith("_v2") else []
    what = [c_uint64(piece), c_size_t(0)] if "Mem" in name else [c_uint64(where + 2 * MIB)]
    call(name, c_uint64(group), *device, c_size_t(offset), *what, c_size_t(SIZE), c_uint64(0))


def bound(name: str, group: int, *offsets: int) -> None:
    """Bind a piece, and let go of it otherwise."""
    piece = create(SIZE)
    where = mapped(piece, SIZE)
    for offset in offsets:
        bind(name, group, piece, where, offset)
    unmap(where, SIZE)
    release(piece)


@pytest.mark.parametrize("name", BINDS)
@inside("fake")
def test_a_bind_holds_the_charge(name: str) -> None:
    start()
    group = multicast()
    bound(name, group, 0, SIZE)
    for offset in (SIZE, 2 * SIZE, 0):  # each is undone for itself, and one was never there
        assert charged() == SIZE
        unbind(group, offset)
    assert charged() == 0
    os.environ["FAKE_CUDA_FAIL"] = "1"
    assert result_of(bind, name, group, 1, 1) == LAUNCH_FAILED
    del os.environ["FAKE_CUDA_FAIL"]
    bound(name, group)
    assert charged() == 0
    # The end of the object ends its binds.
    other, there = multicast(), mapped(group, SIZE)
    bound(name, group, 0)
    for handle in (group, other):
        release(handle)
        assert charged() == SIZE
    unmap(there, SIZE)
    assert charged() == 0


@inside("fake")
def test_an_imported_object_is_no_memory(fake: ProgramContainer) -> None:
    start()
    group = import_any()
    call("cuMulticastAddDevice", c_uint64(group), 0)
    mapped(group, SIZE)
    assert charged() == 0
    assert fake.tenant.shared() == (0, 0)


@inside("fake")
def test_memory_of_others_is_charged_where_no_process_exports_it_unless_it_is_the_host_s() -> None:
    start()
    mapped(import_any(), SIZE)
    assert charged() == SIZE
    os.environ["FAKE_CUDA_LOCATION"] = "3"
    mapped(import_any(), SIZE)
    assert charged() == SIZE


@inside("fake")
def test_an_unseen_handle_of_ones_own_export_keeps_the_charge() -> None:
    start()
    for is_mapped in (True, False):
        piece, mine = shareable(SIZE), create(10 * MIB)
        export(piece)
        again = import_any()
        release(piece)
        release(mine)
        if is_mapped:
            where = mapped(again, SIZE)
            assert charged() == SIZE
            unmap(where, SIZE)
        assert charged() == SIZE
        release(again)
        assert charged() == 0


def releasing_while_mapping(piece: int) -> None:
    where = reserve_address(SIZE)
    meanwhile(lambda: release(piece))
    map_memory(where, SIZE, piece)
    assert charged() == SIZE
    unmap(where, SIZE)
    assert charged() == 0


def unmapping_while_retaining(piece: int) -> None:
    where = mapped(piece, SIZE)
    release(piece)
    meanwhile(lambda: unmap(where, SIZE))
    retained = retain(where)
    assert charged() == SIZE
    release(retained)
    assert charged() == 0


def mapping_another_while_unmapping(piece: int) -> None:
    small = create(2 * MIB)
    where = mapped(small, 2 * MIB)
    release(small)
    meanwhile(lambda: map_memory(where, SIZE, piece), lambda: release(piece))
    unmap(where, 2 * MIB)
    assert charged() == SIZE


def releasing_while_binding(piece: int) -> None:
    group = multicast()
    meanwhile(lambda: release(piece))
    bind("cuMulticastBindMem", group, piece, 0)
    assert charged() == SIZE


@pytest.mark.parametrize(
    "race",
    [
        releasing_while_mapping,
        unmapping_while_retaining,
        mapping_another_while_unmapping,
        releasing_while_binding,
    ],
)
@inside("fake")
def test_another_thread_acts_meanwhile(race: Callable[[int], None]) -> None:
    start()
    race(create(SIZE))
