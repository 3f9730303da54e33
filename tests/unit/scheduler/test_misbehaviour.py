# SPDX-License-Identifier: Apache-2.0
"""Tenants that stop, hang, lie or change, in simulated time."""

import random
from collections.abc import Callable

import pytest

from tests.model import measure
from tests.model.clock import MS, SECOND, US
from tests.model.machine import Device, Machine
from tests.model.policy import CLOSED, METERED, OPEN, WINDOW, Gate, Seen, Share
from tests.model.programs import inference, persistent, training
from tests.model.tenant import Tenant

SMALL = training(100 * US)


def gate(machine: Machine, tenant: Tenant) -> Gate:
    policy = machine.devices[0].policy
    assert policy is not None
    return policy.gate(tenant.places[0].number)


def two(first: Share, second: Share) -> tuple[Machine, Tenant, Tenant]:
    machine = Machine()
    tenants = [machine.tenant(name, SMALL, share) for name, share in (("a", first), ("b", second))]
    return machine, *tenants  # type: ignore[return-value]


def part(tenant: Tenant, milliseconds: int) -> float:
    """Of the last so many milliseconds, percent."""
    now = tenant.clock.now
    return measure.share(tenant, now - milliseconds * MS, now)


def test_who_is_stopped_in_its_window_loses_it_and_gets_its_share_when_it_goes_on() -> None:
    machine, stopped, other = two(Share(500), Share(500))
    machine.run(1)
    while gate(machine, stopped).mode != WINDOW:
        machine.run(0.001)
    stopped.threads[0].stop()
    machine.run(0.03)
    assert part(other, 20) > 95
    machine.run(1)
    assert part(other, 1000) > 97
    stopped.threads[0].resume_process()
    machine.run(1)
    machine.run(1)
    assert abs(part(stopped, 1000) - part(other, 1000)) < 4


def test_who_is_stopped_while_it_waits_costs_the_others_two_milliseconds() -> None:
    machine, stopped, other = two(Share(500), Share(500))
    machine.run(1)
    place = stopped.places[0]
    while place.mode != CLOSED or place.pieces or not place.waiting:
        machine.run(0.001)
    stopped.threads[0].stop()
    machine.run(0.05)
    machine.run(1)
    assert part(other, 1000) > 98
    stopped.threads[0].resume_process()
    machine.run(1.5)
    assert abs(part(stopped, 1000) - part(other, 1000)) < 4


def test_a_kernel_without_an_end_is_flagged_and_charged_and_does_not_stop_others() -> None:
    machine = Machine()
    endless = machine.tenant("endless", persistent(after_ns=200 * MS), Share(500))
    other = machine.tenant("other", SMALL, Share(500))
    machine.run(1.1)
    assert not gate(machine, endless).hung
    machine.run(1)
    assert gate(machine, endless).hung
    charged = gate(machine, endless).charged_ns
    machine.run(2)
    assert part(other, 2000) > 44  # the hardware gives each context half
    assert gate(machine, endless).charged_ns - charged == pytest.approx(SECOND, rel=0.05)
    assert not gate(machine, other).hung


def test_a_long_kernel_that_was_expected_is_not_taken_for_an_endless_one() -> None:
    machine = Machine()
    long = machine.tenant("long", training(1500 * MS, sigma=0.01, per=1), Share(500))
    machine.tenant("other", SMALL, Share(500))
    for _ in range(20):
        machine.run(0.25)
        assert not gate(machine, long).hung


def test_who_wakes_up_late_loses_a_window_and_no_more() -> None:
    """On a machine where a thread runs 5 ms after it was woken."""
    machine, late, other = two(Share(500), Share(500))
    thread = late.threads[0]
    resume = thread.resume

    def resume_later() -> None:
        if late.places[0].pieces:
            resume()
        else:
            machine.clock.at(machine.clock.now + 5 * MS, resume)

    thread.resume = resume_later  # type: ignore[method-assign]
    machine.run(3)
    assert part(late, 2000) > 35
    assert part(other, 2000) > 45


def no_work(seen: Seen) -> None:
    seen.busy_ns = seen.pending_ns = seen.submitted = seen.contexts = 0
    seen.idle_ns = 1


def all_work(seen: Seen) -> None:
    seen.busy_ns, seen.contexts, seen.pending_ns = 1 << 63, 1 << 31, 1 << 63
    seen.idle_ns, seen.progress_ns = 0, seen.at_ns


def nonsense() -> Callable[[Seen], None]:
    chance = random.Random(3)

    def say(seen: Seen) -> None:
        for name in ("busy_ns", "pending_ns", "progress_ns", "idle_ns", "submitted"):
            setattr(seen, name, chance.choice([0, 1, seen.at_ns, 1 << 62, (1 << 64) - 1]))
        seen.contexts = chance.choice([0, 1, 1 << 31])
        seen.waiting = chance.choice([0, 1, 1 << 31])

    return say


@pytest.mark.parametrize("lie", [no_work, all_work, nonsense()])
def test_who_lies_of_its_work_takes_no_guaranteed_share_from_others(
    lie: Callable[[Seen], None],
) -> None:
    machine, liar, other = two(Share(200), Share(800))
    liar.places[0].lie = lie
    machine.run(3)
    assert part(other, 2000) > 44 if lie is all_work else part(other, 2000) > 70


def test_a_lie_about_contexts_charges_nobody_for_more_than_passed() -> None:
    machine, liar, other = two(Share(500), Share(500))
    liar.places[0].lie = all_work
    machine.run(2)
    charged = gate(machine, liar).charged_ns + gate(machine, other).charged_ns
    assert charged <= machine.clock.now


def test_a_share_changes_while_both_run() -> None:
    machine, first, second = two(Share(300), Share(700))
    machine.run(2)
    machine.change(first, Share(800))
    machine.change(second, Share(200))
    machine.run(1.1)
    assert part(first, 1000) == pytest.approx(80, abs=2)
    machine.change(first, Share(200, capped=True))
    machine.run(1.1)
    assert part(first, 1000) == pytest.approx(20, abs=2)
    assert part(second, 1000) > 75


def test_a_cap_holds_from_when_it_is_set_and_is_gone_when_it_is_lifted() -> None:
    machine, only = Machine(), None
    only = machine.tenant("only", SMALL, Share(300))
    machine.run(1)
    assert gate(machine, only).mode == OPEN
    machine.change(only, Share(300, capped=True))
    machine.run(1.1)
    assert part(only, 1000) == pytest.approx(30, abs=1)
    machine.change(only, Share(300))
    machine.run(1.1)
    assert part(only, 1000) > 98
    assert gate(machine, only).mode == OPEN


def test_who_becomes_online_never_waits_and_who_was_online_does() -> None:
    machine = Machine()
    serving = machine.tenant("serving", inference(40), Share(300))
    machine.tenant("training", training(5 * MS, sigma=0.3), Share(700))
    machine.run(2)
    offline = measure.percentile(serving.latencies, 50)
    machine.change(serving, Share(300, online=True))
    machine.run(0.1)
    assert gate(machine, serving).mode == METERED
    serving.latencies.clear()
    machine.run(3)
    assert measure.percentile(serving.latencies, 50) < offline
    machine.change(serving, Share(300))
    machine.run(0.1)
    assert gate(machine, serving).mode in {WINDOW, CLOSED}


def test_who_has_gone_leaves_the_card_to_the_other() -> None:
    machine, first, second = two(Share(500), Share(500))
    machine.run(1)
    device: Device = machine.devices[0]
    assert device.policy is not None
    place = first.places[0]
    first.threads[0].stop()
    device.policy.remove(place.number, machine.clock.now)
    at = device.places.index(place)
    del device.places[at], device.gates[at], device.seen[at]
    device.ring(place)
    machine.run(1)
    assert gate(machine, second).mode == OPEN
    assert part(second, 900) > 98


def test_a_thread_that_waits_too_long_goes_ahead() -> None:
    """Behind an online tenant that never pauses."""
    machine = Machine()
    machine.tenant("online", training(100 * US, gap_ns=0, per=10000), Share(500, online=True))
    behind = machine.tenant("behind", SMALL, Share(500))
    machine.run(12)
    assert behind.places[0].forced >= 2
    assert gate(machine, behind).wait_max_ns >= 5 * SECOND
