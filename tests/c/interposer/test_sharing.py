# SPDX-License-Identifier: Apache-2.0
"""Memory that several processes of a container map counts once, for as long as one has it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from libhook.table import coverage

from .client import MIB, OUT_OF_MEMORY
from .rank import Rank, Ranks

SIZE = 32  # MiB, a whole chunk of a pool
REFUSED = {"refused": OUT_OF_MEMORY}


class Way(NamedTuple):
    """How SIZE MiB are shared: expressions of the process that makes them, and of one that maps.

    `it` is what was made or opened, `exported` what the maker handed out.
    """

    make: str
    let_go: str
    export: str
    open: str
    close: str
    is_kept: bool = True  # by the simulated driver, when its maker has let go of it

    def counts(self, group: Ranks, rank: Rank, mib: int = SIZE) -> None:
        """Assert that so much is charged, and was given by the driver."""
        assert group.used(rank) == mib
        assert not self.is_kept or group.both(rank) == (mib, mib)


IPC = Way("alloc(32 * MIB)", "free(it)", "ipc_handle(it)", "ipc_open(exported)", "ipc_close(it)")
#: By the function that imports.
WAYS = {
    "cuMemImportFromShareableHandle": Way(
        "shareable(32 * MIB)", "release(it)", "export(it)",
        "[p := adopt(*exported), mapped(p, 32 * MIB)]",
        "[unmap(it[1], 32 * MIB), release(it[0])]",
    ),
    "cuIpcOpenMemHandle": IPC._replace(open="ipc_open(exported, '')"),
    "cuIpcOpenMemHandle_v2": IPC,
    "cuMemPoolImportPointer": Way(
        "[p := pool_create(handle_types=1), pool_alloc(p, 32 * MIB)]",
        "[free_async(it[1]), synchronize()]", "pool_export(*it)",
        "pool_import(*exported)", "free_async(it)", is_kept=False,
    ),
}  # fmt: skip


def test_every_function_that_imports_memory_is_here() -> None:
    lines = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    assert sorted(WAYS) == sorted(
        symbol for symbol, entry in lines.items() if "Charged only if" in entry.reason
    )


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, group: Ranks) -> Way:
    """How memory of the first of the group came to the others."""
    way = WAYS[request.param]
    maker, *takers = group
    maker.ask(way.make, "it")
    exported = maker.ask(way.export)
    for taker in takers:
        taker.ask(repr(exported), "exported")
        taker.ask(way.open, "it")
    return way


@pytest.mark.usefixtures("way")
def test_memory_mapped_by_three_processes_counts_once(group: Ranks) -> None:
    assert [group.both(rank) for rank in group] == [(SIZE, SIZE)] * 3
    assert group.container.tenant.shared() == (SIZE * MIB, 2 * SIZE * MIB)
    assert group[0].ask("result_of(alloc, 70 * MIB)") == OUT_OF_MEMORY
    assert group[1].ask("result_of(alloc, 68 * MIB)") == 0


def test_the_last_process_frees_the_whole_charge(way: Way, group: Ranks) -> None:
    maker, *takers = group
    maker.ask(way.let_go)
    for taker in takers:
        way.counts(group, maker)
        taker.ask(way.close)
    way.counts(group, maker, 0)
    assert group.container.tenant.shared() == (0, 0)


def test_memory_that_outlives_its_killed_maker_still_counts(way: Way, group: Ranks) -> None:
    maker, *takers = group
    maker.kill()
    group.reap(takers[0])
    for taker in takers:
        way.counts(group, takers[1])
        assert takers[0].ask("result_of(alloc, 70 * MIB)") == OUT_OF_MEMORY
        taker.ask(way.close)
    way.counts(group, takers[0], 0)


def test_who_has_shared_memory_says_so_until_it_exits(way: Way, group: Ranks) -> None:
    maker, *takers = group
    for taker in takers:
        taker.ask(way.close)
    maker.ask(way.let_go)
    assert len(group.container.tenant.sharing()) == 3
    maker.kill()
    Rank(group.container).end()  # under the number of the maker
    assert len(group.container.tenant.sharing()) == 2


@pytest.mark.parametrize(
    ("call", "shares"),
    [
        ("pool_handle(pool_create(handle_types=1))", True),
        ("destroy_external(import_external(MIB))", True),
        ("ipc_open('00' * 64)", False),
        ("call('cuMemGetHandleForAddressRange', c_uint64(), c_uint64(alloc(1)), 1, 1, 0)", False),
    ],
)
def test_a_process_shares_by_what_succeeds(group: Ranks, call: str, shares: bool) -> None:
    assert isinstance(group[0].ask(call), dict) is not shares  # {"refused": ...}
    assert len(group.container.tenant.sharing()) == shares


def give(maker: Rank, taker: Rank, *, map_it: bool = True) -> None:
    """Let `maker` make 40 MiB as `piece`, and `taker` import it as `piece`."""
    maker.ask("shareable(40 * MIB)", "piece")
    maker.ask("export(piece)", "exported")
    taker.ask(f"adopt(*{maker.ask('exported')})", "piece")
    if map_it:
        taker.ask("mapped(piece, 40 * MIB)", "where")


@pytest.mark.parametrize("how", ["mapped", "unmapped"])
def test_importing_ones_own_exports_gains_nothing(group: Ranks, how: str) -> None:
    """Make, export, import, drop the original: the import keeps the memory, and the charge."""
    (rank, *_) = group
    for _ in range(3):
        rank.ask("shareable(30 * MIB)", "piece")
        rank.ask("export(piece)", "exported")
        rank.ask("adopt(*exported)", "again")
        if how == "mapped":
            rank.ask("mapped(again, 30 * MIB)")
        rank.ask("release(piece)")
        rank.ask("os.close(exported[1])")
    assert rank.ask("shareable(30 * MIB)") == REFUSED
    assert group.both(rank) == (90, 90)


def test_an_import_counts_as_far_as_it_was_mapped(group: Ranks) -> None:
    maker, taker, _ = group
    give(maker, taker, map_it=False)
    taker.ask("reserve_address(100 * MIB)", "where")
    for size, counted in ((0, 0), (10, 10), (4, 10), (20, 20)):
        if size:
            taker.ask(f"map_memory(where, {size} * MIB, piece)")
            taker.ask(f"unmap(where, {size} * MIB)")
        assert group.container.tenant.shared()[1] == counted * MIB
    taker.ask("release(piece)")
    assert group.container.tenant.shared()[1] == 0
    assert group.both(maker) == (40, 40)


def opened(group: Ranks, size: str = "40 * MIB") -> None:
    """Let the second process open a buffer of the first one."""
    group[0].ask(f"alloc({size})", "buffer")
    handle = group[0].ask("ipc_handle(buffer)")
    assert handle == group[0].ask("ipc_handle(buffer)")
    group[1].ask(repr(handle), "handle")
    group[1].ask("ipc_open(handle)", "buffer")


def test_opened_twice_it_counts_once_and_until_closed_twice(group: Ranks) -> None:
    opened(group)
    taker, tenant = group[1], group.container.tenant
    assert taker.ask("ipc_open(handle)") == taker.ask("buffer")
    assert taker.ask("free(buffer)") == {"refused": 1}  # it is not its own to free
    for imported in (40 * MIB, 40 * MIB, 0):
        assert tenant.shared() == (40 * MIB, imported)
        closed = taker.ask("ipc_close(buffer)")
    assert closed == {"refused": 1}
    assert tenant.shared() == (40 * MIB, 0)


def test_the_end_of_a_context_closes_handles_and_withdraws_exports(group: Ranks) -> None:
    for rank in group:
        rank.ask("context()")
    opened(group)
    for shared, rank in (((40 * MIB, 40 * MIB), group[1]), ((40 * MIB, 0), group[0])):
        assert group.container.tenant.shared() == shared
        rank.ask("call('cuCtxDestroy_v2', current())")
    assert group.container.tenant.shared() == (0, 0)
    assert group.container.tenant.used()[0] == 0
