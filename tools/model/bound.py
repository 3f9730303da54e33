# SPDX-License-Identifier: Apache-2.0
"""The most that any schedule makes of a card whose clients wait for their work.

A client launches a batch of equal units, waits for it, and is at the host before the next one. A
unit is not interrupted (it is shorter than a time slice). The card switches to another tenant when
that has work, so a switch never overlaps the pause that it ends. Lengths are means: lengths that
vary only lower what a schedule reaches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SynchronisingClient:
    """A tenant's work; durations in any unit, the same for all."""

    weight: float
    unit: float
    units: int  # of a batch
    pause: float  # from the end of a batch to the launch of the next

    @classmethod
    def seen(cls, weight: float, unit: float, units: int, *, alone: float) -> "SynchronisingClient":
        """One that keeps the card busy for `alone` of the time (0..1) when it has it to itself."""
        return cls(weight, unit, units, unit * units * (1 / alone - 1))

    @property
    def batch(self) -> float:
        return self.unit * self.units


def bound(clients: Sequence[SynchronisingClient], switch: float) -> float:
    """How busy the card is at most while the clients' parts of that are as their weights, 0..1.

    A pause is filled with other tenants' work, at the cost of a switch back, or it is idle.
    """
    weights = sum(client.weight for client in clients)
    longer = sum(
        client.weight / weights * min(client.pause, switch) / client.batch for client in clients
    )
    seen = (
        _seen_from(client, [*clients[:at], *clients[at + 1 :]], switch)
        for at, client in enumerate(clients)
    )
    return min(1 / (1 + longer), *seen)


def _seen_from(
    client: SynchronisingClient, others: list[SynchronisingClient], switch: float
) -> float:
    """The bound by how much work of others fits between two batches of `client`.

    The mean length of all gaps is at least that of a mixture of two, at the mean of the work in
    them that exact shares require.
    """
    needed = client.batch * sum(other.weight for other in others) / client.weight
    points = [(0.0, client.pause)] + [
        (work, max(client.pause, switch + length) + switch)
        for work, length in _fillings(others, client.pause - switch, needed)
    ]
    wait = 0.0  # of each further batch of the others: its pause, or a place in a batch of `client`
    if len(others) == 1:
        wait = min(others[0].pause, 2 * switch if client.units > 1 else math.inf)
    gap = min(
        length + (needed - work) * slope
        for work, length in points
        if work <= needed
        for slope in (
            1 + wait / others[0].batch,
            *((further - length) / (to - work) for to, further in points if to > needed),
        )
    )  # fmt: skip
    return (client.batch + needed) / (client.batch + gap)


def _fillings(
    others: list[SynchronisingClient], idle: float, needed: float
) -> list[tuple[float, float]]:
    """How much work of others may fill a pause, and how long it takes.

    Several tenants fill each other's pauses, and their units may be of any length from the
    shortest on.
    """
    least = min(other.unit for other in others)
    if len(others) > 1:
        return [(work, work) for work in (least, max(least, idle))]
    (other,) = others
    count = math.ceil(max(idle, needed) / least) + other.units
    return [
        (units * least, units * least + (math.ceil(units / other.units) - 1) * other.pause)
        for units in range(1, count + 1)
    ]
