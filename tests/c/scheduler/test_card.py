# SPDX-License-Identifier: Apache-2.0
"""The policy alone: its decisions for given claims."""

import random

import pytest

from tools.model.clock import MS, SECOND, US
from tools.model.policy import (
    CLOSED,
    METERED,
    WINDOW,
    CardPolicy,
    SeenStruct,
    ShareStruct,
    align,
)

MOST = (1 << 64) - 1


def waiting(now: int) -> SeenStruct:
    return SeenStruct(at_ns=now, idle_ns=1, waiting=1)


def busy(
    now: int, *, since: int, pending: int, waits: int = 0, progress: int | None = None
) -> SeenStruct:
    return SeenStruct(
        at_ns=now, busy_ns=now - since, pending_ns=pending, submitted=1, contexts=1, waiting=waits,
        progress_ns=since if progress is None else progress,
    )  # fmt: skip


def add(card: CardPolicy, *shares: ShareStruct, now: int = SECOND) -> list[int]:
    return [card.add(share, now) for share in shares]


def test_a_queue_from_before_a_tenant_came_is_not_taken_for_endless_work() -> None:
    card = CardPolicy()
    (first,) = add(card, ShareStruct(300))
    card.decide(SECOND)
    add(card, ShareStruct(700), now=2 * SECOND)
    hung = []
    for seconds in range(2, 15):
        now = seconds * SECOND
        card.see(first, busy(now, since=2 * SECOND, pending=MS))
        card.decide(now)
        hung.append(card.gate(first).hung)
    assert hung == [False] * 11 + [True] * 2  # from ten seconds on it is


def test_online_is_metered_and_its_work_closes_the_others() -> None:
    card = CardPolicy()
    online, offline = add(card, ShareStruct(300, online=True), ShareStruct(700))
    card.see(offline, waiting(SECOND))
    card.decide(SECOND)
    assert (card.gate(online).mode, card.gate(offline).mode) == (METERED, WINDOW)
    assert card.gate(offline).in_flight_max_ns == MS
    assert card.gate(offline).pieces_min == 1
    card.see(online, busy(SECOND + MS, since=SECOND + MS, pending=MS))
    card.decide(SECOND + MS)
    assert (card.gate(online).mode, card.gate(offline).mode) == (METERED, CLOSED)
    assert card.gate(online).self_throttle_permille == 0
    assert card.gate(offline).self_throttle_permille == 700


@pytest.mark.parametrize("slow", [1, 20])
def test_slow_motion_multiplies_durations_and_nothing_else(slow: int) -> None:
    card = CardPolicy(slow)
    first, second = add(card, ShareStruct(500), ShareStruct(500))
    card.see(first, waiting(SECOND))
    card.see(second, waiting(SECOND))
    look = card.decide(SECOND)
    gate = card.gate(first)
    assert look - SECOND == 2 * MS * slow
    assert gate.in_flight_max_ns == 2 * MS * slow
    assert gate.timing_interval_ns == 500 * US * slow
    assert gate.wait_max_ns == 5 * SECOND * slow
    assert gate.self_throttle_permille == 500


def any_number(chance: random.Random) -> int:
    near = chance.choice([0, SECOND, 1 << 31, 1 << 32, 1 << 62, 1 << 63, MOST])
    return max(0, min(MOST, near + chance.randint(-2, 2) * chance.choice([0, 1, 1000, MS])))


@pytest.mark.parametrize("seed", range(20))
def test_no_claim_breaks_it(seed: int) -> None:
    """Whatever is claimed: one window at most, charges within the time, a later next time."""
    chance = random.Random(seed)
    card = CardPolicy(chance.choice([0, 1, 7, 1 << 31]))
    here: dict[int, ShareStruct] = {}
    now = began = chance.choice([0, SECOND, 1 << 62])
    charged = {}
    for _ in range(1500):
        number = chance.randint(-1, 64)
        if chance.random() < 0.1:
            share = ShareStruct(
                permille=chance.choice([0, 1, 300, 1000, 1 << 31]),
                capped=chance.random() < 0.5,
                online=chance.random() < 0.2,
                priority=chance.choice([0, 1, 2, (1 << 32) - 1]),
                gang=chance.choice([0, 0, 0, 1]),
            )
            if number in here:
                card.change(number, share, now)
                here[number] = share
            elif (added := card.add(share, now)) >= 0:
                here[added] = share
                charged[added] = 0
        elif number in here and chance.random() < 0.05:
            card.remove(number, now)
            del here[number], charged[number]
        seen = SeenStruct(*[any_number(chance) for _ in range(6)], chance.randint(0, MOST >> 32), 1)
        card.see(chance.choice([number, *here]), seen)
        if chance.random() < 0.5:
            now = min(MOST, now + chance.choice([0, 1, 50 * US, MS, 20 * MS, SECOND]))
        look = card.decide(chance.choice([now, now, any_number(chance) if seed > 15 else now]))
        places = [card.place(number) for number in here]
        if len(places) > 1:
            assert all(0 <= at < len(places) for at in align(places[:32]))
        gates = {number: card.gate(number) for number in here}
        assert all(gate.mode <= CLOSED for gate in gates.values())
        assert all(1 <= gate.pieces_min <= 2 for gate in gates.values())
        assert all(gate.wait_max_ns >= 5 * SECOND for gate in gates.values())
        for tenant, gate in gates.items():
            assert gate.charged_ns >= charged[tenant]
            charged[tenant] = gate.charged_ns
        if seed <= 15:
            assert look >= now
            assert sum(charged.values()) <= now - began
