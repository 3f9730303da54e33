# SPDX-License-Identifier: Apache-2.0
"""A process is taken off its cards and put back, by another one, and does not notice."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.simulator import CheckpointFault, CheckpointOperation

from .conftest import ClientProcess, SimulatorMachine, wait_until

MIB = 1 << 20
GIB = 1 << 30
FAST = 0.001  # the time scale: copies take next to no time
CONTEXT = simulator.load_profile("h200")["context_bytes"]
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = range(4)
OPERATING_SYSTEM, ILLEGAL_STATE, NOT_READY, NOT_SUPPORTED = 304, 401, 600, 801


@contextmanager
def started(machine: SimulatorMachine, count: int = 1) -> Iterator[tuple[ClientProcess, ...]]:
    """Start `count` programs with a context, and one without that checkpoints them."""
    with ExitStack() as stack:
        clients = [stack.enter_context(machine.started("checkpoint.py")) for _ in range(count + 1)]
        for client in clients:
            assert client.ask("init") == OK
        for client in clients[:-1]:
            assert client.ask("context") == OK
        yield tuple(clients)


@pytest.fixture
def machine(simulate: Callable[..., SimulatorMachine]) -> SimulatorMachine:
    """Return a machine with two H200."""
    return simulate(cards=2, time_scale=FAST)


def allocated(client: ClientProcess, line: str) -> int:
    """Allocate by a line, and return the pointer."""
    result, pointer = client.ask(line)
    assert result == OK, line
    return int(pointer)


def room(client: ClientProcess) -> int:
    """Return the size of the largest allocation that the card has room for."""
    return int(client.ask("info")[0]) // (2 * MIB) * 2 * MIB


def cards(machine: SimulatorMachine) -> list[dict[str, Any]]:
    """Return what NVML has of each card."""
    found: list[dict[str, Any]] = machine.ask("nvml.py")["cards"]
    return found


def used(machine: SimulatorMachine) -> list[int]:
    """Return the memory of programs on each card, by the card's sum."""
    return [card["used_by_programs"] for card in cards(machine)]


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
        assert resident(pid) - before[0] >= GIB // 4
        assert resident(other) - before[1] < MIB * 16
        assert caller.ask(f"back {pid}") == [OK, OK]
        assert resident(pid) - before[0] < MIB * 16


#: What a program allocates, writes and compares, by the lines that do it.
KINDS = ("alloc 3000", f"alloc {64 * MIB}", f"pooled {5 * MIB}", f"mapped {4 * MIB}")


def fill_all(target: ClientProcess, seed: str) -> Callable[[], None]:
    """Give a program memory of every kind; return a function that compares all of it."""
    pointers = {line: allocated(target, line) for line in KINDS}
    for line, pointer in pointers.items():
        size = int(line.split()[1])
        assert target.ask(f"fill {pointer} {seed}{size} {size}") == OK
    assert target.ask(f"pinned {MIB} {seed}") == OK
    assert target.ask(f"array {seed}") == OK
    assert target.ask("event") == OK
    assert target.ask("graph") == OK
    assert target.ask("sync") == OK
    span = target.ask("elapsed")

    def compare() -> None:
        for line, pointer in pointers.items():
            size = int(line.split()[1])
            assert target.ask(f"same {pointer} {seed}{size} {size}") == [OK, True], line
        assert target.ask("pinned_same")
        assert target.ask("array_same")
        assert target.ask("elapsed") == span
        assert target.ask("graph_launch") == OK
        assert target.ask("launch 1 3") == OK
        assert target.ask("sync") == OK

    return compare


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


# --- what is not supported ---


@pytest.mark.parametrize(("version", "has"), [("12.6", False), ("12.8", True)])
def test_the_api_came_with_driver_570(
    simulate: Callable[..., SimulatorMachine], version: str, *, has: bool
) -> None:
    code = (
        "import ctypes; driver = ctypes.CDLL('libcuda.so.1'); assert driver.cuInit(0) == 0;"
        "print(hasattr(driver, 'cuCheckpointProcessGetState'), len(os.listdir('/proc/self/task')))"
    )
    printed = simulate(cuda_version=version).run(sys.executable, "-c", "import os; " + code)
    assert printed.split() == [str(has), "2" if has else "1"]


def test_a_driver_before_580_moves_nothing(simulate: Callable[..., SimulatorMachine]) -> None:
    machine = simulate(cards=2, cuda_version="12.8", time_scale=FAST)
    first, second = machine.simulator.uuids
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        assert caller.ask(f"evict {pid}") == [OK, OK]
        assert caller.ask(f"restore {pid} {first}={second}") == INVALID_VALUE
        assert caller.ask(f"back {pid}") == [OK, OK]


@pytest.mark.parametrize("line", [f"managed {MIB}", f"mapped {2 * MIB} 1"])
def test_managed_and_shared_memory_cannot_leave(machine: SimulatorMachine, line: str) -> None:
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        allocated(target, line)
        assert caller.ask(f"evict {pid}") == [OK, NOT_SUPPORTED]
        assert caller.ask(f"state {pid}") == [OK, LOCKED]
        assert caller.ask(f"unlock {pid}") == OK
        allocated(target, f"alloc {MIB}")


def test_an_instance_cannot_be_left(simulate: Callable[..., SimulatorMachine]) -> None:
    with started(simulate(mig=("1g.18gb",), time_scale=FAST)) as (target, caller):
        pid = target.ask("pid")
        assert caller.ask(f"evict {pid}") == [OK, NOT_SUPPORTED]
        assert caller.ask(f"unlock {pid}") == OK


# --- calls meanwhile ---


def test_calls_wait_until_the_unlock(machine: SimulatorMachine) -> None:
    calls = ("alloc 1000", "info", "sync", "pooled 1000", "launch 1", "event", "array x")
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        assert caller.ask(f"lock {pid}") == OK
        threads = [target.ask(f"start {call}") for call in calls]
        task = Path(f"/proc/{pid}/task")
        wait_until(lambda: all("futex" in (task / f"{one}/wchan").read_text() for one in threads))
        for verb in ("checkpoint", "restore"):
            assert caller.ask(f"{verb} {pid}") == OK
            assert target.ask("done") == 0
        assert caller.ask(f"unlock {pid}") == OK
        wait_until(lambda: target.ask("done") == len(calls))


def test_a_lock_waits_for_work_and_gives_up_in_time(machine: SimulatorMachine) -> None:
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        assert target.ask("launch 600000000") == OK  # ten minutes, at this scale
        assert caller.ask(f"lock {pid} 50") == NOT_READY
        assert caller.ask(f"state {pid}") == [OK, RUNNING]
        allocated(target, f"alloc {MIB}")  # and its calls go on


def test_work_that_ends_is_waited_for(simulate: Callable[..., SimulatorMachine]) -> None:
    with started(simulate()) as (target, caller):
        pid = target.ask("pid")
        assert target.ask("launch 300") == OK
        assert caller.ask(f"lock {pid} 60000") == OK
        assert caller.ask(f"unlock {pid}") == OK
        assert target.ask("sync") == OK


def test_a_busy_program_never_sees_other_bytes(machine: SimulatorMachine, tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_bytes(bytes(8))

    def reached() -> int:
        return int.from_bytes(count.read_bytes(), "little")

    first, second = machine.simulator.uuids
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        assert target.ask(f"writing {count}") == "going"
        for at in range(30):
            pair = f"{first}={second}" if at % 2 == 0 else f"{second}={first}"
            before = reached()
            wait_until(lambda before=before: reached() > before)  # type: ignore[misc]
            assert caller.ask(f"evict {pid}") == [OK, OK]
            stopped = reached()
            assert caller.ask(f"restore {pid} {pair}") == OK
            assert reached() <= stopped + 1  # it may have been about to write the number
            assert caller.ask(f"unlock {pid}") == OK
        before = reached()
        wait_until(lambda: reached() > before)
        assert target.process.poll() is None


def test_a_forked_child_does_not_wait(machine: SimulatorMachine) -> None:
    with started(machine) as (target, caller):
        assert caller.ask(f"evict {target.ask('pid')}") == [OK, OK]
        assert target.ask("forked") == [NOT_INITIALIZED] * 3


@pytest.mark.parametrize("verbs", ["lock", "lock checkpoint", "lock checkpoint restore"])
def test_a_killed_program_leaves_nothing(machine: SimulatorMachine, verbs: str) -> None:
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        allocated(target, f"alloc {GIB // 8}")
        for verb in verbs.split():
            assert caller.ask(f"{verb} {pid}") == OK
        target.kill()
        assert used(machine) == [0, 0]
        assert caller.ask(f"unlock {pid}") == INVALID_VALUE
        assert caller.ask("context") == OK
        allocated(caller, f"alloc {room(caller)}")


def test_a_killed_caller_leaves_the_program_to_the_next(machine: SimulatorMachine) -> None:
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        simulator.fail(
            machine.simulator.device,
            checkpoint_faults=1,
            checkpoint_operation=CheckpointOperation.CHECKPOINT,
            checkpoint_effect=CheckpointFault.HANGS,
        )
        with machine.started("checkpoint.py") as dying:
            assert dying.ask(f"lock {pid}") == OK
            assert dying.process.stdin is not None
            dying.process.stdin.write(f"checkpoint {pid}\n")
            dying.process.stdin.flush()
            task = Path(f"/proc/{dying.process.pid}/wchan")
            wait_until(lambda: "futex" in task.read_text())
            dying.kill()
        simulator.fail(machine.simulator.device)
        wait_until(lambda: caller.ask(f"state {pid}") == [OK, CHECKPOINTED])
        assert caller.ask(f"back {pid}") == [OK, OK]


# --- injected faults ---


@pytest.mark.parametrize("operation", list(CheckpointOperation))
def test_an_operation_fails_on_request(
    machine: SimulatorMachine, operation: CheckpointOperation
) -> None:
    verbs = ("lock", "checkpoint", "restore", "unlock")
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        simulator.fail(
            machine.simulator.device,
            checkpoint_faults=1,
            checkpoint_operation=operation,
            checkpoint_error=NOT_SUPPORTED,
        )
        for number, verb in enumerate(verbs, 1):
            if number == operation:
                before = caller.ask(f"state {pid}")
                assert caller.ask(f"{verb} {pid}") == NOT_SUPPORTED
                assert caller.ask(f"state {pid}") == before
            assert caller.ask(f"{verb} {pid}") == OK


def test_a_process_fails_for_ever_on_request(machine: SimulatorMachine) -> None:
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        simulator.fail(
            machine.simulator.device,
            checkpoint_faults=1,
            checkpoint_operation=CheckpointOperation.CHECKPOINT,
            checkpoint_effect=CheckpointFault.FAILS,
            checkpoint_error=OUT_OF_MEMORY,
        )
        assert caller.ask(f"evict {pid}") == [OK, OUT_OF_MEMORY]
        assert caller.ask(f"state {pid}") == [OK, FAILED]
        for verb in ("lock", "checkpoint", "restore", "unlock"):
            assert caller.ask(f"{verb} {pid}") == ILLEGAL_STATE


def test_a_lock_crashes_its_target_on_request(machine: SimulatorMachine) -> None:
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        simulator.fail(
            machine.simulator.device,
            checkpoint_faults=1,
            checkpoint_operation=CheckpointOperation.LOCK,
            checkpoint_effect=CheckpointFault.CRASHES,
        )
        assert caller.ask(f"lock {pid}") == OPERATING_SYSTEM
        assert target.process.wait() == -signal.SIGSEGV
