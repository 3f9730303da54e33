# SPDX-License-Identifier: Apache-2.0
"""A card as several processes see it: memory, processes and time are shared through the file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import simulator

from .conftest import ClientProcess, SimulatorMachine, wait_until

MIB = 1 << 20
GIB = 1 << 30
UNIT = 2 * MIB  # the granularity of a card's memory


def _whole(size: int) -> int:
    """Return `size` without what is left over by whole units."""
    return size // UNIT * UNIT


def _enter(client: ClientProcess) -> int:
    """Make a context and return the client's pid."""
    assert client.ask("init") == 0
    assert client.ask("context") == 0
    return int(client.ask("pid"))


def test_the_first_context_of_a_process_takes_the_size_in_the_profile(
    machine: SimulatorMachine,
) -> None:
    profile = simulator.load_profile("h200")
    with machine.started("tenant.py") as one, machine.started("tenant.py") as other:
        _enter(one)
        free, total = one.ask("info")
        assert total == profile["memory_bytes"] - profile["reserved_bytes"]
        assert total - free == profile["context_bytes"]
        _enter(other)
        assert one.ask("info") == other.ask("info")
        assert total - one.ask("info")[0] == 2 * profile["context_bytes"]


def test_a_card_can_be_filled_and_then_refuses(machine: SimulatorMachine) -> None:
    with machine.started("tenant.py") as one, machine.started("tenant.py") as other:
        _enter(one)
        _enter(other)
        free, _ = one.ask("info")
        result, pointer = one.ask(f"alloc {_whole(free)}")
        assert result == 0
        assert other.ask("info")[0] == free % UNIT
        assert other.ask("alloc 1")[0] == 2
        assert one.ask(f"free {pointer}") == 0
        assert other.ask(f"alloc {_whole(free)}")[0] == 0


def test_memory_of_a_killed_process_is_free_at_the_next_query(
    machine: SimulatorMachine,
) -> None:
    with machine.started("tenant.py") as one, machine.started("tenant.py") as other:
        _enter(one)
        before = one.ask("info")
        _enter(other)
        assert other.ask(f"alloc {40 * GIB}")[0] == 0
        assert before[0] - one.ask("info")[0] > 40 * GIB
        other.kill()
        # An allocation of all that there was: the dead are looked for before it is refused.
        assert one.ask(f"alloc {_whole(before[0])}")[0] == 0
        (card,) = machine.ask("nvml.py")["cards"]
        assert card["free"] == before[0] % UNIT


def test_a_process_killed_at_any_moment_of_many_leaves_nothing(machine: SimulatorMachine) -> None:
    """Killed while it allocates, frees and launches as fast as it can."""
    with machine.started("tenant.py") as watcher:
        _enter(watcher)
        assert watcher.ask("launch 1") == 0  # its kernel's module is there from now on
        before = watcher.ask("info")[0]
        context_bytes = simulator.load_profile("h200")["context_bytes"]
        for _ in range(5):
            with machine.started("tenant.py") as churning:
                _enter(churning)
                assert churning.ask("churn") == "going"
                wait_until(lambda: watcher.ask("info")[0] < before - context_bytes)
                churning.kill()
            assert watcher.ask("launch 1") == 0
            assert watcher.ask("sync") == 0
            result, pointer = watcher.ask(f"alloc {_whole(before)}")
            assert result == 0
            assert watcher.ask(f"alloc {UNIT}")[0] == 2
            assert watcher.ask(f"free {pointer}") == 0
            assert watcher.ask("info")[0] == before


def test_a_process_is_listed_from_its_first_context_to_its_end(machine: SimulatorMachine) -> None:
    profile = simulator.load_profile("h200")
    with machine.started("nvml.py", "--wait") as nvml, machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert nvml.ask("look")["cards"][0]["processes"] == {}
        pid = _enter(tenant)
        assert tenant.ask(f"alloc {3 * GIB}")[0] == 0
        used = profile["context_bytes"] + 3 * GIB
        (card,) = nvml.ask("look")["cards"]
        assert card["processes"] == {str(pid): used}
        assert card["used_by_programs"] == used
        assert card["used"] == used + profile["reserved_bytes"]
        assert card["free"] == tenant.ask("info")[0]
        tenant.kill()
        assert nvml.ask("look")["cards"][0]["processes"] == {}


def test_a_process_has_the_pid_of_the_namespace_that_queries_it(machine: SimulatorMachine) -> None:
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
    with (
        machine.started("nvml.py", "--wait") as nvml,
        machine.started("tenant.py") as outside,
        machine.started("tenant.py", under=unshare) as inside,
    ):
        outer = _enter(outside)
        assert _enter(inside) == 1
        assert inside.ask("listed") == [1]  # the other's has no pid there
        seen = {int(pid) for pid in nvml.ask("look")["cards"][0]["processes"]}
        assert outer in seen
        (contained,) = seen - {outer}
        status = Path(f"/proc/{contained}/status").read_text()
        assert re.search(r"^NSpid:.*\t1$", status, re.MULTILINE)


def test_the_two_libraries_in_one_process_do_not_disturb_each_other(
    machine: SimulatorMachine,
) -> None:
    with machine.started("tenant.py") as tenant:
        pid = _enter(tenant)
        result, pointer = tenant.ask(f"alloc {GIB}")
        assert result == 0
        assert tenant.ask("listed") == [pid]
        assert tenant.ask("listed") == [pid]
        assert tenant.ask(f"free {pointer}") == 0
        (card,) = machine.ask("nvml.py")["cards"]
        profile = simulator.load_profile("h200")
        assert card["processes"] == {str(pid): profile["context_bytes"]}


def test_cards_are_apart(simulate: Callable[..., SimulatorMachine]) -> None:
    machine = simulate("t4", cards=2)
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context 1") == 0
        assert tenant.ask(f"alloc {GIB}")[0] == 0
        first, second = machine.ask("nvml.py")["cards"]
        assert first["processes"] == {}
        assert first["used_by_programs"] == 0
        assert second["used_by_programs"] > GIB
        assert first["uuid"] != second["uuid"]


def test_a_forked_child_of_a_started_process_has_no_driver(machine: SimulatorMachine) -> None:
    with machine.started("tenant.py") as tenant:
        _enter(tenant)
        free = tenant.ask("info")[0]
        assert tenant.ask("forked") == [3, 3, 3]
        assert tenant.ask("info")[0] == free  # the child's end took nothing from its parent
        assert tenant.ask(f"alloc {MIB}")[0] == 0


def test_a_child_forked_before_the_start_starts_by_itself(machine: SimulatorMachine) -> None:
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("forked")[0] == 0


def test_busy_time_is_reported_for_the_card_and_its_process(machine: SimulatorMachine) -> None:
    with machine.started("nvml.py", "--wait") as nvml, machine.started("tenant.py") as tenant:
        pid = _enter(tenant)
        (card,) = nvml.ask("look")["cards"]
        assert card["busy"] == 0
        assert tenant.ask("launch 100 30") == 0
        wait_until(lambda: nvml.ask("look")["cards"][0]["busy"] >= 95)
        (card,) = nvml.ask("look")["cards"]
        assert card["process_busy"][str(pid)] >= 95
        assert tenant.ask("sync") == 0


def test_two_busy_processes_share_a_card_evenly(machine: SimulatorMachine) -> None:
    with (
        machine.started("nvml.py", "--wait") as nvml,
        machine.started("tenant.py") as one,
        machine.started("tenant.py") as other,
    ):
        pids = [str(_enter(one)), str(_enter(other))]
        assert one.ask("launch 4000") == 0
        assert other.ask("launch 4000") == 0
        wait_until(lambda: nvml.ask("look")["cards"][0]["busy"] >= 92)
        busy = nvml.ask("look")["cards"][0]["process_busy"]
        # 2 ms of every 2.16 for both together: 46 % each.
        assert all(44 <= busy[pid] <= 48 for pid in pids), busy


@pytest.mark.parametrize("time_scale", [1, 8])
def test_slow_motion_makes_every_duration_longer(
    simulate: Callable[..., SimulatorMachine], time_scale: int
) -> None:
    machine = simulate(time_scale=time_scale)
    answer = machine.ask("bindings.py")
    assert answer["elapsed_ms"] >= time_scale * answer["kernel_ms"]
