# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are refused, calls of the process meanwhile, and injected faults."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.simulator import CheckpointFault, CheckpointOperation, device_file

from .checkpointing import (
    CHECKPOINTED,
    FAILED,
    FAST,
    GIB,
    ILLEGAL_STATE,
    INVALID_VALUE,
    LOCKED,
    MIB,
    NOT_INITIALIZED,
    NOT_READY,
    NOT_SUPPORTED,
    OK,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    RUNNING,
    allocated,
    fill_all,
    room,
    started,
    used,
)
from .conftest import SimulatorMachine, wait_until
from .mps_daemon import mps_daemon


@pytest.fixture
def machine(simulate: Callable[..., SimulatorMachine]) -> SimulatorMachine:
    """Return a machine with two H200."""
    return simulate(cards=2, time_scale=FAST)


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


def test_a_client_of_an_mps_server_cannot_leave(machine: SimulatorMachine) -> None:
    with mps_daemon(machine) as control:
        client = control.client().started("checkpoint.py")
        with client as target, machine.started("checkpoint.py") as caller:
            assert target.ask("init") == OK
            assert target.ask("context") == OK
            pid = target.ask("pid")
            assert caller.ask(f"evict {pid}") == [OK, NOT_SUPPORTED]
            assert caller.ask(f"unlock {pid}") == OK


def test_a_card_of_another_model_is_refused(machine: SimulatorMachine) -> None:
    first, second = machine.simulator.uuids
    other = device_file.Profile.name
    with machine.simulator.device.open("r+b") as file:
        start = ctypes.sizeof(device_file.Header)
        file.seek(start + ctypes.sizeof(device_file.Profile) + other.offset)
        file.write(b"Another Card".ljust(other.size, b"\0"))
    with started(machine) as (target, caller):
        pid = target.ask("pid")
        assert caller.ask(f"evict {pid}") == [OK, OK]
        assert caller.ask(f"restore {pid} {first}={second}") == NOT_SUPPORTED
        assert caller.ask(f"back {pid}") == [OK, OK]


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
            dying.send(f"checkpoint {pid}")
            task = Path(f"/proc/{dying.process.pid}/wchan")
            wait_until(lambda: "futex" in task.read_text())
            dying.kill()
        simulator.fail(machine.simulator.device)
        wait_until(lambda: caller.ask(f"state {pid}") == [OK, CHECKPOINTED])
        assert caller.ask(f"back {pid}") == [OK, OK]


def test_two_callers_take_turns(machine: SimulatorMachine) -> None:
    """Of two that evict and restore one program at once, each call has a documented result."""
    legal = {OK, ILLEGAL_STATE}
    with started(machine) as (target, one), machine.started("checkpoint.py") as other:
        pid = target.ask("pid")
        compare = fill_all(target, "shared")
        for client in (one, other):
            client.send(f"cycle {pid} 40")
        for client in (one, other):
            assert set(client.receive()) <= legal
        while one.ask(f"state {pid}")[1] != RUNNING:
            one.ask(f"back {pid}")
        compare()


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
