# SPDX-License-Identifier: Apache-2.0
"""The most that a schedule makes of a card with clients that wait, in cases worked out by hand."""

from __future__ import annotations

import pytest

from tools.model.bound import SynchronisingClient, bound


def alike(
    unit: float, units: int, pause: float, *, weights: tuple[float, ...] = (30, 70)
) -> list[SynchronisingClient]:
    return [SynchronisingClient(weight, unit, units, pause) for weight in weights]


@pytest.mark.parametrize(
    ("clients", "switch", "most"),
    [
        # Without pauses, windows of any length waste nothing.
        (alike(100, 8, 0), 30, 1),
        # A pause that is shorter than a switch is not worth filling: as one alone, 20 of 35.
        (alike(20, 1, 15), 30, 20 / 35),
        # Nor is one of 85 if two switches take 320.
        (alike(200, 1, 85), 160, 200 / 285),
        # Of seven pauses of the larger, three are filled and make a cycle of 285 one of 400.
        (alike(200, 1, 85), 0, 2000 / (4 * 285 + 3 * 400)),
        # The same, with two switches in each of these cycles.
        (alike(200, 1, 85), 30, 2000 / (4 * 285 + 3 * 460)),
        # In turns: two batches and two switches.
        (alike(100, 1, 60, weights=(1, 1)), 30, 200 / 260),
        # Four units of 20 are 5 more than a pause, three are 15 less: 160 of the larger need 68.6.
        (alike(20, 8, 75), 0, 1600 / (160 * 7 + 4 * 75 + 3 * 80)),
        # Four in turns, whose batches are longer than a pause.
        (alike(20, 8, 75, weights=(1, 1, 1, 1)), 0, 1),
        (alike(20, 8, 75, weights=(1, 1, 1, 1)), 30, 640 / 760),
        # Nine tenths for one: nothing fills eight of nine of its pauses.
        (alike(100, 1, 50, weights=(1, 9)), 0, 1000 / (8 * 150 + 200)),
        # A client of long units next to one of short ones: no more than one in each pause.
        (
            [SynchronisingClient(1, 20, 1, 20), SynchronisingClient(1, 200, 1, 20)],
            0,
            400 / (200 + 20 + 9 * 40),
        ),
        # Unlike clients in turns: 100, then two times 40 without a pause between.
        ([SynchronisingClient(50, 100, 1, 60), SynchronisingClient(40, 40, 2, 60)], 10, 180 / 200),
    ],
)
def test_a_case_worked_out_by_hand(
    clients: list[SynchronisingClient], switch: float, most: float
) -> None:
    assert bound(clients, switch) == pytest.approx(most)


def test_a_pause_is_what_is_missing_alone() -> None:
    assert SynchronisingClient.seen(1, 20, 8, alone=0.8).pause == pytest.approx(40)
