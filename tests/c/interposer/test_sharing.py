# SPDX-License-Identifier: Apache-2.0
"""Memory that several processes of a container map counts once, for as long as one has it."""

from __future__ import annotations

import pytest

from .conftest import ProgramContainer
from .rank import Rank, Ranks, ranks
from .tenant import MIB


def give(maker: Rank, takers: list[Rank], size: int = 40 * MIB, *, map_it: bool = True) -> None:
    """Let `maker` make `piece` and `takers` import it as `piece`."""
    maker.ask(f"shareable({size})", "piece")
    pid, descriptor = maker.ask("export(piece)")
    for taker in takers:
        taker.ask(f"adopt({pid}, {descriptor})", "piece")
        if map_it:
            taker.ask(f"mapped(piece, {size})", "where")
    maker.ask(f"os.close({descriptor})")


def test_memory_mapped_by_three_processes_counts_once(group: Ranks) -> None:
    maker, *takers = group
    give(maker, takers)
    assert [group.both(rank) for rank in group] == [(40, 40)] * 3
    assert group.container.tenant.shared() == (40 * MIB, 80 * MIB)
    assert maker.ask("result_of(alloc, 62 * MIB)") == 2
    assert takers[0].ask("result_of(alloc, 60 * MIB)") == 0


def test_the_last_process_frees_the_whole_charge(group: Ranks) -> None:
    maker, *takers = group
    give(maker, takers)
    maker.ask("release(piece)")
    assert group.both(maker) == (40, 40)
    takers[0].ask("unmap(where, 40 * MIB)")
    takers[0].ask("release(piece)")
    assert group.both(maker) == (40, 40)
    takers[1].ask("release(piece)")
    assert group.both(maker) == (40, 40)
    takers[1].ask("unmap(where, 40 * MIB)")
    assert group.both(maker) == (0, 0)
    assert group.container.tenant.shared() == (0, 0)


def test_memory_that_outlives_its_killed_maker_still_counts(group: Ranks) -> None:
    maker, *takers = group
    give(maker, takers)
    maker.kill()
    group.reap(takers[0])
    assert group.both(takers[1]) == (40, 40)
    assert takers[0].ask("result_of(alloc, 62 * MIB)") == 2
    for taker in takers:
        taker.ask("unmap(where, 40 * MIB)")
        taker.ask("release(piece)")
    assert group.both(takers[0]) == (0, 0)


def test_a_killed_importer_leaves_the_maker_s_charge(group: Ranks) -> None:
    maker, *takers = group
    give(maker, takers)
    takers[0].kill()
    group.reap(maker)
    assert group.both(maker) == (40, 40)
    maker.ask("release(piece)")
    assert group.both(takers[1]) == (40, 40)
    takers[1].kill()
    assert maker.ask("result_of(alloc, 100 * MIB)") == 0
    assert group.both(maker) == (100, 100)


def test_the_last_killed_importer_frees_it(group: Ranks) -> None:
    maker, *takers = group
    give(maker, takers[:1])
    maker.kill()
    takers[0].kill()
    assert takers[1].ask("result_of(alloc, 100 * MIB)") == 0


@pytest.mark.parametrize("how", ["mapped", "unmapped"])
def test_importing_ones_own_exports_gains_nothing(group: Ranks, how: str) -> None:
    """Make, export, import, drop the original: the import keeps the memory, and the charge."""
    (rank, *_) = group
    outcomes = []
    for _ in range(4):
        outcomes.append(rank.ask("shareable(30 * MIB)", "piece"))
        if outcomes[-1] == {"refused": 2}:
            continue
        pid, descriptor = rank.ask("export(piece)")
        rank.ask(f"adopt({pid}, {descriptor})", "again")
        if how == "mapped":
            rank.ask("mapped(again, 30 * MIB)")
        rank.ask("release(piece)")
        rank.ask(f"os.close({descriptor})")
    assert outcomes[3] == {"refused": 2}
    assert {"refused": 2} not in outcomes[:3]
    assert group.both(rank) == (90, 90)


def test_a_handle_that_was_exported_often_counts_once(group: Ranks) -> None:
    maker, taker, _ = group
    give(maker, [taker])
    pid, descriptor = maker.ask("export(piece)")
    taker.ask(f"adopt({pid}, {descriptor})", "again")
    assert group.container.tenant.shared() == (40 * MIB, 40 * MIB)
    taker.ask("mapped(again, 40 * MIB)")
    assert group.container.tenant.shared() == (40 * MIB, 40 * MIB)


def test_an_import_counts_as_far_as_it_was_mapped(group: Ranks) -> None:
    maker, taker, _ = group
    give(maker, [taker], map_it=False)
    shared = [group.container.tenant.shared()]
    taker.ask("reserve_address(100 * MIB)", "where")
    for size in (10, 4, 20):
        taker.ask(f"map_memory(where, {size} * MIB, piece)")
        taker.ask(f"unmap(where, {size} * MIB)")
        shared.append(group.container.tenant.shared())
    taker.ask("release(piece)")
    shared.append(group.container.tenant.shared())
    assert [imported // MIB for _, imported in shared] == [0, 10, 10, 20, 0]
    assert group.both(maker) == (40, 40)


def test_an_import_retained_by_its_address_counts_to_its_last_release(group: Ranks) -> None:
    maker, taker, _ = group
    give(maker, [taker])
    taker.ask("retain(where + 6 * MIB)", "another")
    maker.ask("release(piece)")
    taker.ask("unmap(where, 40 * MIB)")
    taker.ask("release(piece)")
    assert group.both(maker) == (40, 40)
    taker.ask("release(another)")
    assert group.both(maker) == (0, 0)


def test_ranks_that_all_share_with_all_count_each_piece_once(group: Ranks) -> None:
    """As the peers of a collective library do: every process maps every buffer."""
    for rank in group:
        rank.ask("shareable(20 * MIB)", "own")
    descriptors = [rank.ask("export(own)") for rank in group]
    for number, rank in enumerate(group):
        for other, (pid, descriptor) in enumerate(descriptors):
            if other != number:
                rank.ask(f"mapped(adopt({pid}, {descriptor}), 20 * MIB)")
    assert [group.both(rank) for rank in group] == [(60, 60)] * 3
    assert group[0].ask("result_of(alloc, 40 * MIB)") == 0


def test_a_failed_export_and_import_leave_no_trace(group: Ranks) -> None:
    (rank, *_) = group
    rank.ask("create(4 * MIB)", "private")
    assert "refused" in rank.ask("export(private)")
    assert "refused" in rank.ask(f"adopt({rank.process.pid}, 0)")
    assert group.container.tenant.shared() == (0, 0)
    assert group.both(rank) == (4, 4)


def test_memory_that_sleeps_and_wakes_is_all_released(group: Ranks) -> None:
    """Many small pieces in one reservation, unmapped in one call, released, and made anew."""
    (rank, *_) = group
    rank.ask("reserve_address(80 * MIB)", "where")
    for _ in range(3):
        rank.ask("[create(2 * MIB) for _ in range(40)]", "pieces")
        rank.ask("[map_memory(where + n * 2 * MIB, 2 * MIB, p) for n, p in enumerate(pieces)]")
        assert group.both(rank) == (80, 80)
        rank.ask("unmap(where, 80 * MIB)")
        rank.ask("[release(piece) for piece in pieces]")
        assert group.both(rank) == (0, 0)


def test_a_forked_child_answers_for_none_of_it(simulated: ProgramContainer) -> None:
    with ranks(simulated, 1) as (rank,):
        rank.ask("shareable(40 * MIB)", "piece")
        rank.ask("export(piece)")
        rank.ask("[child := os.fork(), child or os._exit(0), os.waitpid(child, 0)][2][1]", "ended")
        assert rank.ask("ended") == 0
        assert simulated.tenant.shared() == (40 * MIB, 0)
        rank.ask("release(piece)")
        assert simulated.tenant.shared() == (0, 0)
