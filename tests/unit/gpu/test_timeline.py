# SPDX-License-Identifier: Apache-2.0
"""What the logs of contexts that shared a card are taken to say."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tools.gpu.report import ReportRow
from tools.gpu.slices import described
from tools.gpu.timeline import Log, Sharing, quantile, sharing, turns

MS = 1_000_000
SWITCH = 100_000


def taking_turns(turns: int, slice_ns: int, switch_ns: int) -> list[Log]:
    """Two kernels that begin together: the first runs, then the other, and so on."""
    period = slice_ns + switch_ns
    logs = []
    for owner in (0, 1):
        runs = [(at * period, at * period + slice_ns) for at in range(turns) if at % 2 == owner]
        gaps = tuple((before[1], after[0]) for before, after in pairwise(runs))
        logs.append(Log(runs[0][0], runs[-1][1], gaps))
    return logs


def test_slices_switches_and_shares_are_read_from_two_logs() -> None:
    seen = sharing(taking_turns(40, 2 * MS, SWITCH))
    assert set(seen.slices_ns) == {2 * MS}
    assert set(seen.switches_ns) == {SWITCH}
    assert seen.overlap_ns == 0
    assert seen.shares[0] == pytest.approx(seen.shares[1], abs=0.02)
    assert sum(seen.shares) == pytest.approx(2 * MS / (2 * MS + SWITCH), abs=0.01)


def test_a_first_and_a_last_run_are_no_slices_because_nothing_waited() -> None:
    early, late = Log(0, 50 * MS, ((10 * MS, 13 * MS),)), Log(11 * MS, 12 * MS, ())
    seen = sharing([early, late])
    assert seen.slices_ns == seen.switches_ns == ()


def test_concurrent_time_is_reported_and_is_no_switch() -> None:
    seen = sharing([Log(0, 10 * MS, ()), Log(2 * MS, 8 * MS, ())])
    assert seen.switches_ns == ()
    assert seen.shares == (1.0, 1.0)
    assert seen.overlap_ns > 0


def test_consecutive_kernels_prove_nothing() -> None:
    with pytest.raises(ValueError, match="one after the other"):
        sharing([Log(0, MS, ()), Log(2 * MS, 3 * MS, ())])


def test_a_log_is_read_from_a_trace() -> None:
    answer = {"jumps": 1, "first": 10, "last": 90, "looks": 5, "log": [[20, 60]]}
    assert [(run.start, run.end) for run in Log.of(answer).runs(0)] == [(10, 20), (60, 90)]


def test_a_log_that_no_kernel_wrote_is_refused() -> None:
    answer = {"jumps": 0, "first": 0, "last": 0, "looks": 0, "log": []}
    with pytest.raises(ValueError, match="this driver ran none"):
        Log.of(answer)


def test_a_log_that_lost_gaps_is_refused() -> None:
    answer = {"jumps": 5000, "first": 1, "last": 9, "looks": 3, "log": [[2, 3]]}
    with pytest.raises(ValueError, match="5000 gaps, and room for 1"):
        Log.of(answer)


def steps_of_turns(kernel: int, slice_: int, away: int, count: int) -> list[int]:
    """The steps of a context that is away after each `slice_`, wherever in a kernel that is."""
    ends = [number * kernel for number in range(1, count + 1)]
    seen = [end + (end - 1) // slice_ * away for end in ends]
    return [after - before for before, after in pairwise(seen)]


@pytest.mark.parametrize("kernel", [100_000, 130_000])  # one that divides a slice, and one not
def test_time_slices_are_read_from_the_times_between_a_contexts_events(kernel: int) -> None:
    seen = turns(steps_of_turns(kernel, 2 * MS, 2 * MS + 2 * SWITCH, 2000))
    assert seen.kernel_ns == kernel
    assert seen.slice_ns == pytest.approx(2 * MS, rel=0.01)
    assert seen.switch_ns(contexts=2) == pytest.approx(SWITCH, rel=0.01)


def test_uninterrupted_kernels_prove_nothing_about_time_slices() -> None:
    with pytest.raises(ValueError, match="0 turns of others among 50 kernels"):
        turns([100_000] * 50)


def test_a_quantile_of_nothing_is_refused_and_of_one_is_it() -> None:
    assert quantile([7], 0.99) == 7
    assert quantile(range(100), 0.9) == 90
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_the_rows_give_slice_switch_loss_and_shares() -> None:
    seen = sharing(taking_turns(40, 2 * MS, SWITCH))
    rows = {row.name: row for row in described("two", seen, "")}
    assert rows["two: slice"].shown == "2 ms"
    assert rows["two: switch"].shown == "100 us"
    assert rows["two: lost to switches"].value == pytest.approx(100 * 0.1 / 2.1)
    assert str(rows["two: shares"].value).count(",") == 1


def test_without_a_switch_the_row_says_so() -> None:
    seen = Sharing(5 * MS, (), (), (1.0, 1.0), 5 * MS)
    assert [*described("two", seen, "")] == [
        ReportRow("two: slice", missing="no switch in 5 ms together, 100% of it at once")
    ]
