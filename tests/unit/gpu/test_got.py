# SPDX-License-Identifier: Apache-2.0
"""What tenants are taken to have got of the card, from their logs."""

from __future__ import annotations

import pytest

from tools.gpu.got import got, unit_ns

MS = 1_000_000
S = 1_000 * MS


def log(rate: float, begin: int, end: int, step: int = MS) -> list[tuple[int, int]]:
    """Units done at `rate` per ms, reported every `step`."""
    return [(at, round(rate * (at - begin) / MS)) for at in range(begin + step, end + 1, step)]


def test_a_unit_is_the_time_of_one_program_alone() -> None:
    assert unit_ns(log(10, 5 * S, 6 * S)) == pytest.approx(MS / 10)


def test_one_batch_gives_no_rate() -> None:
    with pytest.raises(ValueError, match="1 batches were done"):
        unit_ns([(7, 10)])


def test_parts_are_of_the_time_between_and_of_nothing_before_or_after() -> None:
    logs = {"small": log(3, 0, 4 * S), "large": log(7, 0, 4 * S)}
    seen = got(logs, {"small": MS / 10, "large": MS / 10}, S, 3 * S)
    assert seen.parts["small"] == pytest.approx(30)
    assert seen.parts["large"] == pytest.approx(70)
    assert seen.total == pytest.approx(100)


def test_a_process_that_stops_early_gets_nothing_afterwards() -> None:
    seen = got({"one": log(10, 0, 2 * S)}, {"one": MS / 10}, S, 5 * S)
    assert seen.parts["one"] == pytest.approx(25)


def test_work_that_comes_in_large_steps_counts_for_the_time_it_took() -> None:
    seen = got({"one": log(1, 0, 4 * S, step=300 * MS)}, {"one": MS}, S, 3 * S)
    assert seen.parts["one"] == pytest.approx(100)


def test_errors_are_counted_per_second_over_all_requests() -> None:
    halves = [*log(10, 0, 2 * S), *((at, 20_000) for at in range(2 * S, 4 * S, MS))]
    seen = got({"one": halves, "free": log(1, 0, 4 * S)}, {"one": MS / 10, "free": MS}, S, 4 * S)
    errors = seen.errors({"one": 50})
    assert max(errors) == pytest.approx(50, abs=0.1)
    assert min(errors) == pytest.approx(0, abs=0.1)
    assert len(errors) == 9
