# SPDX-License-Identifier: Apache-2.0
"""Tenants that stop, hang, lie or change, in simulated time."""

import random
from collections.abc import Callable

import pytest

from tools.model import measure
from tools.model.clock import MS, SECOND, US
from tools.model.machine import MachineModel
from tools.model.policy import OPEN, WINDOW, SeenStruct, ShareStruct
from tools.model.programs import persistent, training
from tools.model.tenant import ModelTenant

SMALL = training(100 * US)


def two(first: ShareStruct, second: ShareStruct) -> tuple[MachineModel, ModelTenant, ModelTenant]:
    machine = MachineModel()
    tenants = [machine.tenant(name, SMALL, share) for name, share in (("a", first), ("b", second))]
    return machine, *tenants  # type: ignore[return-value]


def part(tenant: ModelTenant, milliseconds: int) -> float:
    """Of the last so many milliseconds, percent."""
    now = tenant.clock.now
    return measure.share(tenant, now - milliseconds * MS, now)


def test_a_tenant_stopped_in_its_window_loses_it_and_gets_its_share_when_it_continues() -> None:
    machine, stopped, other = two(ShareStruct(500), ShareStruct(500))
    machine.run(1)
    while machine.gate(stopped).mode != WINDOW:
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


def test_a_kernel_without_an_end_is_flagged_and_charged_and_does_not_stop_others() -> None:
    machine = MachineModel()
    endless = machine.tenant("endless", persistent(after_ns=200 * MS), ShareStruct(500))
    other = machine.tenant("other", SMALL, ShareStruct(500))
    machine.run(1.1)
    assert not machine.gate(endless).hung
    machine.run(1)
    assert machine.gate(endless).hung
    charged = machine.gate(endless).charged_ns
    machine.run(2)
    assert part(other, 2000) > 44  # the hardware gives each context half
    assert machine.gate(endless).charged_ns - charged == pytest.approx(SECOND, rel=0.05)
    assert not machine.gate(other).hung


def test_a_cap_holds_next_to_a_process_that_stops_with_work_pending() -> None:
    """It claims its work for as long as it is stopped, which is most of the time."""
    machine = MachineModel()
    capped = machine.tenant("capped", SMALL, ShareStruct(600, capped=True, measured=True))
    stops = machine.tenant("stops", SMALL, ShareStruct(300, capped=True, measured=True))

    def claims(seen: SeenStruct) -> None:
        if machine.clock.now // (200 * MS) % 2:
            seen.busy_ns, seen.contexts, seen.pending_ns = machine.clock.now, 1, 2 * MS
            seen.progress_ns = machine.clock.now // (200 * MS) * 200 * MS
            seen.idle_ns = 0
        stops.places[0].changed = True

    stops.places[0].lie = claims
    machine.run(4)
    assert part(capped, 3000) == pytest.approx(60, abs=2)
    charged = machine.gate(capped).charged_ns / machine.clock.now * 100
    assert charged == pytest.approx(60, abs=2)


@pytest.mark.parametrize(("correction", "wanted"), [(150, 45), (-150, 75)])
def test_a_cap_is_enforced_by_the_drivers_measurement(correction: int, wanted: float) -> None:
    """A correction applies for five seconds after it was sent."""
    machine = MachineModel()
    capped = machine.tenant("capped", SMALL, ShareStruct(600, capped=True))
    machine.run(1)
    machine.change(capped, ShareStruct(600, capped=True, correction_permille=correction))
    machine.run(2)
    assert part(capped, 1500) == pytest.approx(wanted, abs=2)
    machine.run(4.5)
    assert part(capped, 1000) == pytest.approx(60, abs=2)


def test_work_that_is_submitted_at_a_closed_gate_is_counted() -> None:
    machine, patched, honest = two(ShareStruct(300, capped=True), ShareStruct(700))
    patched.places[0].passes = lambda *_: True  # type: ignore[method-assign]
    machine.run(2)
    assert machine.gate(patched).ungated_ns > SECOND / 2
    assert machine.gate(honest).ungated_ns == 0


def test_waiting_threads_that_a_tenant_claims_do_not_excuse_many_launches() -> None:
    machine, patched, _ = two(ShareStruct(300, capped=True), ShareStruct(700))

    def claims(seen: SeenStruct) -> None:
        seen.waiting = 1000

    patched.places[0].passes = lambda *_: True  # type: ignore[method-assign]
    patched.places[0].lie = claims
    machine.run(10)
    assert machine.gate(patched).ungated_ns > 4 * SECOND


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize(("milliseconds", "processes"), [(1000, 1), (1000, 3), (100, 8)])
def test_launches_that_the_library_forces_are_not_taken_for_a_bypass(
    milliseconds: int, processes: int, *, capped: bool
) -> None:
    """Of kernels so long, most launches wait for longer than the bound."""
    machine = MachineModel()
    kernels = training(milliseconds * MS, sigma=0.01, per=50)
    long = machine.tenant("long", kernels, ShareStruct(300, capped=capped), processes=processes)
    machine.tenant("short", SMALL, ShareStruct(600, capped=capped))
    machine.run(40)
    assert long.places[0].forced > 3
    assert machine.gate(long).ungated_ns == 0


def test_a_long_kernel_that_was_expected_is_not_taken_for_an_endless_one() -> None:
    machine = MachineModel()
    long = machine.tenant("long", training(1500 * MS, sigma=0.01, per=1), ShareStruct(500))
    machine.tenant("other", SMALL, ShareStruct(500))
    for _ in range(20):
        machine.run(0.25)
        assert not machine.gate(long).hung


def test_a_thread_that_waits_too_long_goes_ahead() -> None:
    """Behind an online tenant that never pauses."""
    machine = MachineModel()
    machine.tenant("online", training(100 * US, gap_ns=0, per=10000), ShareStruct(500, online=True))
    behind = machine.tenant("behind", SMALL, ShareStruct(500))
    machine.run(12)
    assert behind.places[0].forced >= 2
    assert machine.gate(behind).wait_max_ns >= 5 * SECOND


def no_work(seen: SeenStruct) -> None:
    seen.busy_ns = seen.pending_ns = seen.submitted = seen.contexts = 0
    seen.idle_ns = 1


def all_work(seen: SeenStruct) -> None:
    seen.busy_ns, seen.contexts, seen.pending_ns = 1 << 63, 1 << 31, 1 << 63
    seen.idle_ns, seen.progress_ns = 0, seen.at_ns


def nonsense() -> Callable[[SeenStruct], None]:
    chance = random.Random(3)

    def say(seen: SeenStruct) -> None:
        for name in ("busy_ns", "pending_ns", "progress_ns", "idle_ns", "submitted"):
            setattr(seen, name, chance.choice([0, 1, seen.at_ns, 1 << 62, (1 << 64) - 1]))
        seen.contexts = chance.choice([0, 1, 1 << 31])
        seen.waiting = chance.choice([0, 1, 1 << 31])

    return say


@pytest.mark.parametrize("lie", [no_work, all_work, nonsense()])
def test_false_claims_of_work_take_no_guaranteed_share_from_others(
    lie: Callable[[SeenStruct], None],
) -> None:
    machine, liar, other = two(ShareStruct(200), ShareStruct(800))
    liar.places[0].lie = lie
    machine.run(3)
    assert part(other, 2000) > 44 if lie is all_work else part(other, 2000) > 70


def test_a_false_context_count_charges_no_tenant_for_more_than_passed() -> None:
    machine, liar, other = two(ShareStruct(500), ShareStruct(500))
    liar.places[0].lie = all_work
    machine.run(2)
    charged = machine.gate(liar).charged_ns + machine.gate(other).charged_ns
    assert charged <= machine.clock.now


def test_a_cap_holds_from_when_it_is_set_and_is_gone_when_it_is_lifted() -> None:
    machine, only = MachineModel(), None
    only = machine.tenant("only", SMALL, ShareStruct(300))
    machine.run(1)
    assert machine.gate(only).mode == OPEN
    machine.change(only, ShareStruct(300, capped=True))
    machine.run(1.1)
    assert part(only, 1000) == pytest.approx(30, abs=1)
    machine.change(only, ShareStruct(300))
    machine.run(1.1)
    assert part(only, 1000) > 98
    assert machine.gate(only).mode == OPEN
