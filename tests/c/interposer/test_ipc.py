# SPDX-License-Identifier: Apache-2.0
"""Buffers that another process opened by their IPC handle count once."""

from __future__ import annotations

from .rank import Ranks
from .tenant import MIB


def opened_by_two(group: Ranks) -> None:
    """Let the first process make `buffer`, and the others open it as `buffer`."""
    maker, *takers = group
    maker.ask("alloc(40 * MIB)", "buffer")
    handle = maker.ask("ipc_handle(buffer)")
    for taker in takers:
        taker.ask(f"ipc_open({handle!r})", "buffer")


def test_a_buffer_that_three_have_counts_once(group: Ranks) -> None:
    opened_by_two(group)
    assert [group.both(rank) for rank in group] == [(40, 40)] * 3
    assert group[1].ask("result_of(alloc, 62 * MIB)") == 2
    assert group[2].ask("result_of(alloc, 60 * MIB)") == 0


def test_imported_memory_counts_until_it_is_closed(group: Ranks) -> None:
    opened_by_two(group)
    maker, first, second = group
    maker.ask("free(buffer)")
    assert group.both(maker) == (40, 40)
    first.ask("ipc_close(buffer)")
    assert group.both(maker) == (40, 40)
    second.ask("ipc_close(buffer)")
    assert group.both(maker) == (0, 0)
    assert group.container.tenant.shared() == (0, 0)


def test_imported_memory_of_a_killed_process_counts_until_it_is_closed(group: Ranks) -> None:
    opened_by_two(group)
    maker, first, second = group
    maker.kill()
    group.reap(first)
    assert group.both(first) == (40, 40)
    first.ask("ipc_close(buffer)")
    second.ask("ipc_close(buffer)")
    assert group.both(first) == (0, 0)


def test_a_killed_opener_leaves_the_maker_s_charge(group: Ranks) -> None:
    opened_by_two(group)
    maker, first, second = group
    first.kill()
    group.reap(maker)
    assert group.both(second) == (40, 40)
    second.ask("ipc_close(buffer)")
    maker.ask("free(buffer)")
    assert group.both(maker) == (0, 0)


def test_opened_twice_it_counts_once_and_until_closed_twice(group: Ranks) -> None:
    maker, taker, _ = group
    maker.ask("alloc(40 * MIB)", "buffer")
    handle = maker.ask("ipc_handle(buffer)")
    assert handle == maker.ask("ipc_handle(buffer)")
    where = taker.ask(f"ipc_open({handle!r})")
    assert where == taker.ask(f"ipc_open({handle!r})")
    assert group.container.tenant.shared() == (40 * MIB, 40 * MIB)
    taker.ask(f"ipc_close({where})")
    assert group.container.tenant.shared() == (40 * MIB, 40 * MIB)
    taker.ask(f"ipc_close({where})")
    assert group.container.tenant.shared() == (40 * MIB, 0)
    assert taker.ask(f"ipc_close({where})") == {"refused": 1}
    assert group.container.tenant.shared() == (40 * MIB, 0)


def test_an_opened_buffer_is_not_ones_own_to_free(group: Ranks) -> None:
    opened_by_two(group)
    assert group[1].ask("free(buffer)") == {"refused": 1}
    assert group.both(group[1]) == (40, 40)
    assert group.container.tenant.shared() == (40 * MIB, 80 * MIB)


def test_a_small_buffer_is_opened_at_the_size_that_its_maker_was_charged(group: Ranks) -> None:
    maker, taker, _ = group
    maker.ask("alloc(1000)", "buffer")
    handle = maker.ask("ipc_handle(buffer)")
    taker.ask(f"ipc_open({handle!r})")
    assert group.container.tenant.shared() == (1024, 1024)
    maker.ask("free(buffer)")
    assert group.container.tenant.shared() == (0, 1024)
    assert taker.ask("100 * MIB - memory()[0]") == 1024


def test_the_end_of_a_context_closes_handles_opened_in_it(group: Ranks) -> None:
    maker, taker, _ = group
    maker.ask("alloc(40 * MIB)", "buffer")
    handle = maker.ask("ipc_handle(buffer)")
    taker.ask("[context() and 0]")
    taker.ask(f"ipc_open({handle!r})")
    assert group.container.tenant.shared() == (40 * MIB, 40 * MIB)
    taker.ask("[c := c_void_p(), call('cuCtxGetCurrent', byref(c)), call('cuCtxDestroy_v2', c)][1]")
    assert group.container.tenant.shared() == (40 * MIB, 0)


def test_the_end_of_a_context_withdraws_its_exports(group: Ranks) -> None:
    (maker, *_) = group
    maker.ask("[context() and 0]")
    maker.ask("ipc_handle(alloc(40 * MIB))")
    assert group.container.tenant.shared() == (40 * MIB, 0)
    maker.ask("[c := c_void_p(), call('cuCtxGetCurrent', byref(c)), call('cuCtxDestroy_v2', c)][1]")
    assert group.container.tenant.shared() == (0, 0)
    assert group.container.tenant.used()[0] == 0


def test_a_handle_that_fails_leaves_no_trace(group: Ranks) -> None:
    maker, taker, _ = group
    managed = maker.ask("alloc_managed(4 * MIB)")
    assert "refused" in maker.ask(f"ipc_handle({managed})")
    assert "refused" in taker.ask(f"ipc_open({'00' * 64!r})")
    assert group.container.tenant.shared() == (0, 0)


def test_a_forked_child_has_nothing_open(group: Ranks) -> None:
    opened_by_two(group)
    child = "[pid := os.fork(), pid or os._exit(result_of(ipc_close, buffer)), os.waitpid(pid, 0)]"
    group[1].ask(f"{child}[0] and 0")
    assert group.container.tenant.shared() == (40 * MIB, 80 * MIB)
