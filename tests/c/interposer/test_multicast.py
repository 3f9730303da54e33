# SPDX-License-Identifier: Apache-2.0
"""Memory that is bound to a multicast object is charged for as long as it is bound.

And imports of which the driver makes handles that no process has seen, of this process's own memory
too: the simulator recognises its own.
"""

from __future__ import annotations

import pytest

from .conftest import ProgramContainer
from .tenant import MIB

SETUP = (
    "start()",
    "size = c_size_t(40 * MIB)",
    "def multicast():",
    "    handle = c_uint64()",
    "    call('cuMulticastCreate', byref(handle), (c_uint64 * 4)(1, 40 * MIB))",
    "    return handle.value",
    "def import_any():",
    "    handle = c_uint64()",
    "    call('cuMemImportFromShareableHandle', byref(handle), None, 1)",
    "    return handle.value",
    "def unbind(group, offset=0):",
    "    call('cuMulticastUnbind', c_uint64(group), 0, c_size_t(offset), size)",
    "def used():",
    "    return 100 - memory()[0] // MIB",
)
#: How `piece`, which is mapped at `where`, is bound to `group`.
BINDS = {
    "cuMulticastBindMem": "c_uint64(piece), c_size_t(0), size, c_uint64(0)",
    "cuMulticastBindMem_v2": "c_uint64(piece), c_size_t(0), size, c_uint64(0)",
    "cuMulticastBindAddr": "c_uint64(where + 2 * MIB), size, c_uint64(0)",
    "cuMulticastBindAddr_v2": "c_uint64(where + 2 * MIB), size, c_uint64(0)",
}


def bind(way: str, offset: int = 0) -> str:
    device = "0, " if way.endswith("_v2") else ""
    return f"call({way!r}, c_uint64(group), {device}c_size_t({offset}), {BINDS[way]})"


def bound(way: str) -> tuple[str, ...]:
    """Return what binds a piece of 40 MiB and lets go of it otherwise."""
    return (
        "piece = create(40 * MIB)",
        "where = mapped(piece, 40 * MIB)",
        bind(way),
        "unmap(where, 40 * MIB)",
        "release(piece)",
    )


@pytest.mark.parametrize("way", BINDS)
def test_a_bind_holds_the_charge(way: str, fake: ProgramContainer) -> None:
    said = fake.says(
        *SETUP, "group = multicast()", *bound(way), "before = used()", "unbind(group)",
        "say(before, used())",
    )  # fmt: skip
    assert said == [40, 0]


@pytest.mark.parametrize("way", BINDS)
def test_the_end_of_the_object_ends_its_binds(way: str, fake: ProgramContainer) -> None:
    said = fake.says(
        *SETUP,
        "other, group = multicast(), multicast()",
        *bound(way),
        "there = mapped(group, 40 * MIB)",
        "release(group)",
        "release(other)",
        "before = used()",
        "unmap(there, 40 * MIB)",
        "say(before, used())",
    )
    assert said == [40, 0]


@pytest.mark.parametrize("way", BINDS)
def test_each_bind_is_undone_for_itself(way: str, fake: ProgramContainer) -> None:
    said = fake.says(
        *SETUP,
        "group = multicast()",
        "piece = create(40 * MIB)",
        "where = mapped(piece, 40 * MIB)",
        *(bind(way, offset) for offset in (0, 40 * MIB)),
        "unmap(where, 40 * MIB)",
        "release(piece)",
        "seen = [used()]",
        *("for offset in (40 * MIB, 80 * MIB, 0):", "    unbind(group, offset)"),
        "    seen.append(used())",
        "say(*seen)",
    )
    assert said == [40, 40, 40, 0]


@pytest.mark.parametrize("way", BINDS)
def test_a_bind_that_fails_holds_nothing(way: str, fake: ProgramContainer) -> None:
    said = fake.says(
        *SETUP,
        "group = multicast()",
        "piece = create(40 * MIB)",
        "where = mapped(piece, 40 * MIB)",
        "os.environ['FAKE_CUDA_FAIL'] = '1'",
        "failed = result_of(lambda: " + bind(way) + ")",
        "del os.environ['FAKE_CUDA_FAIL']",
        "unmap(where, 40 * MIB)",
        "release(piece)",
        "say(failed, used())",
    )
    assert said == [719, 0]


def test_an_imported_object_is_no_memory(fake: ProgramContainer) -> None:
    said = fake.says(
        *SETUP,
        "group = import_any()",
        "call('cuMulticastAddDevice', c_uint64(group), 0)",
        "mapped(group, 40 * MIB)",
        "say(used())",
    )
    assert said == [0]
    assert fake.tenant.shared() == (0, 0)


def test_memory_of_another_process_is_not_charged_while_it_lives_there(
    fake: ProgramContainer,
) -> None:
    said = fake.says(*SETUP, "mapped(import_any(), 40 * MIB)", "say(used())")
    assert said == [40]  # no process exports so much


def test_memory_on_the_host_is_not_charged(fake: ProgramContainer) -> None:
    fake.env["FAKE_CUDA_LOCATION"] = "3"
    said = fake.says(*SETUP, "mapped(import_any(), 40 * MIB)", "say(used())")
    assert said == [0]


def test_an_unseen_handle_of_ones_own_export_keeps_the_charge(fake: ProgramContainer) -> None:
    said = fake.says(
        *SETUP,
        "piece = shareable(40 * MIB)",
        "export(piece)",
        "again = import_any()",
        "seen = [used()]",
        "release(piece)",
        "seen.append(used())",
        "where = mapped(again, 40 * MIB)",
        "seen.append(used())",
        "unmap(where, 40 * MIB)",
        "release(again)",
        "say(*seen, used())",
    )
    assert said == [40, 40, 40, 0]


def test_an_import_that_was_never_mapped_leaves_nothing_behind(fake: ProgramContainer) -> None:
    said = fake.says(
        *SETUP,
        "piece, mine = shareable(40 * MIB), create(10 * MIB)",
        "export(piece)",
        "again = import_any()",
        "release(piece)",
        "release(mine)",
        "before = used()",
        "release(again)",
        "say(before, used())",
    )
    assert said == [40, 0]


@pytest.mark.parametrize("kind", [2, 3, 4])
def test_no_kind_of_host_memory_is_charged(kind: int, fake: ProgramContainer) -> None:
    said = fake.says(*SETUP, f"create(400 * MIB, {kind})", "say(used())")
    assert said == [0]


@pytest.mark.parametrize("kind", [5, 6, 77])
def test_other_kinds_of_places_are_a_card_s(kind: int, fake: ProgramContainer) -> None:
    said = fake.says(
        *SETUP,
        f"over = result_of(create, 102 * MIB, {kind})",
        f"create(40 * MIB, {kind})",
        "say(over, used())",
    )
    assert said == [2, 40]
