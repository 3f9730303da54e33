# SPDX-License-Identifier: Apache-2.0
"""A process is taken off its cards and put back, by another one, and does not notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import simulator

from .checkpointing import (
    CHECKPOINTED,
    CONTEXT,
    FAILED,
    FAST,
    GIB,
    ILLEGAL_STATE,
    INVALID_VALUE,
    LOCKED,
    MIB,
    NOT_INITIALIZED,
    OK,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    RUNNING,
    allocated,
    cards,
    fill_all,
    room,
    started,
    used,
)
from .conftest import SimulatorMachine


@pytest.fixture
def machine(simulate: Callable[..., SimulatorMachine]) -> SimulatorMachine:
    """Return a machine with two H200."""
    return simulate(cards=2, time_scale=FAST)


# --- states ---


def test_the_states_follow_one_another(machine: SimulatorMachine) -> None:
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        expected = {
            "lock": LOCKED,
            "checkpoint": CHECKPOINTED,
            "restore": LOCKED,
            "unlock": RUNNING,
        }
        assert caller.ask(f"state {pid}") == [OK, RUNNING]
        for _ in range(3):
            for verb, state in expected.items():
                assert caller.ask(f"{verb} {pid}") == OK
                assert caller.ask(f"state {pid}") == [OK, state]


@pytest.mark.parametrize(
    ("before", "legal"),
    [
        ("", "lock"),
        ("lock", "checkpoint unlock"),
        ("lock checkpoint", "restore"),
        ("lock checkpoint restore", "checkpoint unlock"),
    ],
)
def test_other_transitions_are_refused_and_change_nothing(
    machine: SimulatorMachine, before: str, legal: str
) -> None:
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        for verb in before.split():
            assert caller.ask(f"{verb} {pid}") == OK
        state = caller.ask(f"state {pid}")
        for verb in {"lock", "checkpoint", "restore", "unlock"} - set(legal.split()):
            assert caller.ask(f"{verb} {pid}") == ILLEGAL_STATE
            assert caller.ask(f"state {pid}") == state


def test_only_programs_with_cuda_have_a_state(machine: SimulatorMachine) -> None:
    with started(machine) as (_target, caller), machine.started("checkpoint.py") as idle:
        for pid in (idle.ask("pid"), 1, 0, -1, 1 << 22):
            for verb in ("state", "thread"):
                assert caller.ask(f"{verb} {pid}")[0] == INVALID_VALUE
            for verb in ("lock", "checkpoint", "restore", "unlock"):
                assert caller.ask(f"{verb} {pid}") == INVALID_VALUE


def test_a_thread_stands_for_its_process(machine: SimulatorMachine) -> None:
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        result, thread = caller.ask(f"thread {pid}")
        assert (result, Path(f"/proc/{pid}/task/{thread}").is_dir()) == (OK, True)
        assert thread != pid
        assert caller.ask(f"evict {thread}") == [OK, OK]
        assert caller.ask(f"state {pid}") == [OK, CHECKPOINTED]


def test_a_program_that_never_called_cu_init_may_checkpoint(machine: SimulatorMachine) -> None:
    with started(machine) as (target, _), machine.started("checkpoint.py") as caller:
        pid = target.ask("pid")
        assert caller.ask(f"evict {pid}") == [OK, OK]
        assert caller.ask(f"back {pid}") == [OK, OK]


def test_restoring_needs_persistence_mode_or_a_driver_in_use(machine: SimulatorMachine) -> None:
    with started(machine) as (target, caller), machine.started("checkpoint.py") as idle:
        pid = target.ask("pid")
        simulator.fail(machine.simulator.device, persistence_off=1)
        assert idle.ask(f"evict {pid}") == [OK, OK]
        assert idle.ask(f"restore {pid}") == NOT_INITIALIZED
        assert idle.ask(f"state {pid}") == [OK, CHECKPOINTED]
        assert caller.ask(f"back {pid}") == [OK, OK]


# --- memory ---


def test_memory_leaves_the_card_and_comes_back(machine: SimulatorMachine) -> None:
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        allocated(target, f"alloc {GIB // 4}")
        before, free = cards(machine), target.ask("info")
        assert before[0]["processes"] == {str(pid): CONTEXT + GIB // 4}
        assert caller.ask(f"evict {pid}") == [OK, OK]
        assert used(machine) == [0, 0]
        assert cards(machine)[0]["processes"] == {}
        assert caller.ask(f"restore {pid}") == OK
        assert cards(machine)[0]["processes"] == before[0]["processes"]
        assert caller.ask(f"unlock {pid}") == OK
        assert cards(machine) == before
        assert target.ask("info") == free


def test_its_bytes_are_host_memory_of_the_program_itself(machine: SimulatorMachine) -> None:
    def resident(pid: int) -> int:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        return int(text.partition("RssAnon:")[2].split()[0]) << 10

    with started(machine) as (target, caller):
        pid, other = target.ask("pid"), caller.ask("pid")
        allocated(target, f"alloc {GIB // 4}")
        before = resident(pid), resident(other)
        assert caller.ask(f"evict {pid}") == [OK, OK]
        # The kernel counts pages of each processor only now and then.
        assert resident(pid) - before[0] > 0.99 * GIB / 4
        assert resident(other) - before[1] < MIB * 16
        assert caller.ask(f"back {pid}") == [OK, OK]
        assert resident(pid) - before[0] < MIB * 16


def test_contents_of_every_kind_survive(machine: SimulatorMachine) -> None:
    with started(machine, 3) as (*targets, caller):
        compares = [fill_all(target, f"p{at}") for at, target in enumerate(targets)]
        pids = [target.ask("pid") for target in targets]
        before = cards(machine)
        for _ in range(2):
            for verb in ("lock", "checkpoint", "restore", "unlock"):
                for pid in pids:
                    assert caller.ask(f"{verb} {pid}") == OK
            for compare in compares:
                compare()
        assert cards(machine)[0]["processes"] == before[0]["processes"]


def test_the_memory_of_one_program_is_anothers_meanwhile(machine: SimulatorMachine) -> None:
    with started(machine, 2) as (sleeping, awake, caller):
        pid = sleeping.ask("pid")
        compare = fill_all(sleeping, "sleeping")
        free = awake.ask("info")[0]
        assert caller.ask(f"evict {pid}") == [OK, OK]
        pointer = allocated(awake, f"alloc {free + 32 * MIB}")
        assert awake.ask(f"free {pointer}") == OK
        assert caller.ask(f"back {pid}") == [OK, OK]
        compare()


def test_a_restore_without_room_is_the_last(machine: SimulatorMachine) -> None:
    with started(machine, 2) as (target, other, caller):
        pid = target.ask("pid")
        allocated(target, f"alloc {64 * MIB}")
        assert caller.ask(f"evict {pid}") == [OK, OK]
        pointer = allocated(other, f"alloc {room(other)}")
        assert caller.ask(f"restore {pid}") == OUT_OF_MEMORY
        assert caller.ask(f"state {pid}") == [OK, FAILED]
        assert other.ask(f"free {pointer}") == OK
        assert caller.ask(f"restore {pid}") == OPERATING_SYSTEM
        assert caller.ask(f"unlock {pid}") == ILLEGAL_STATE
        target.kill()
        assert caller.ask(f"state {pid}")[0] == INVALID_VALUE


# --- moves ---


def test_a_program_is_moved_with_all_that_it_has(machine: SimulatorMachine) -> None:
    first, second = machine.simulator.uuids
    with started(machine, 2) as (target, neighbour, caller):
        pid = target.ask("pid")
        compare, stays = fill_all(target, "moved"), fill_all(neighbour, "stays")
        before, beside = (
            cards(machine)[0]["processes"][str(client.ask("pid"))] for client in (target, neighbour)
        )
        for old, new, where in ((first, second, 1), (second, first, 0), (first, first, 0)):
            assert caller.ask(f"evict {pid}") == [OK, OK]
            assert caller.ask(f"back {pid} {old}={new}") == [OK, OK]
            assert cards(machine)[where]["processes"][str(pid)] == before
            assert target.ask("uuids")[0] == new
            compare()
            more = allocated(target, f"alloc {8 * MIB}")
            assert cards(machine)[where]["processes"][str(pid)] == before + 8 * MIB
            assert target.ask(f"free {more}") == OK
            stays()
        assert cards(machine)[0]["processes"][str(neighbour.ask("pid"))] == beside


def test_two_cards_are_exchanged(machine: SimulatorMachine) -> None:
    first, second = machine.simulator.uuids
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        one = allocated(target, f"alloc {8 * MIB}")
        assert target.ask("context 1") == OK
        other = allocated(target, f"alloc {24 * MIB}")
        for pointer, seed in ((one, "one"), (other, "other")):
            assert target.ask(f"fill {pointer} {seed} {8 * MIB}") == OK
        assert caller.ask(f"evict {pid}") == [OK, OK]
        # Every card must be named.
        assert caller.ask(f"restore {pid} {first}={second}") == INVALID_VALUE
        assert caller.ask(f"restore {pid} {first}={second} {second}={second}") == INVALID_VALUE
        assert caller.ask(f"back {pid} {first}={second} {second}={first}") == [OK, OK]
        assert used(machine) == [CONTEXT + 24 * MIB, CONTEXT + 8 * MIB]
        assert target.ask("uuids") == [second, first]
        for pointer, seed in ((one, "one"), (other, "other")):
            assert target.ask(f"same {pointer} {seed} {8 * MIB}") == [OK, True]


def test_pairs_that_are_not_cards_are_refused(machine: SimulatorMachine) -> None:
    first, unknown = machine.simulator.uuids[0], "GPU-00000000-0000-0000-0000-000000000001"
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        assert caller.ask(f"evict {pid}") == [OK, OK]
        assert caller.ask(f"restore {pid} {first}={unknown}") == INVALID_VALUE
        assert caller.ask(f"restore {pid} {unknown}={first}") == INVALID_VALUE
        assert caller.ask(f"state {pid}") == [OK, CHECKPOINTED]
        assert caller.ask(f"back {pid}") == [OK, OK]
