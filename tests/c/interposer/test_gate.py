# SPDX-License-Identifier: Apache-2.0
"""Programs in several processes, and on several cards, at gates that are not open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gpushare import abi

from .conftest import ProgramContainer, SimulatedContainer, program
from .gate import MILLISECOND, WrittenGate
from .program import succeeded

KERNEL = (
    "image = b'.version 7.0\\n.target sm_70\\n.address_size 64\\n'",
    "image += b'.visible .entry spin(.param .u64 spin_duration_ns)\\n{\\n\\tret;\\n}\\n\\0'",
    "def kernel():",
    "    module, function = c_void_p(), c_void_p()",
    "    call('cuModuleLoadData', byref(module), image)",
    "    call('cuModuleGetFunction', byref(function), module, b'spin')",
    "    return function",
    "def launch(function, duration_ns):",
    "    duration = c_uint64(duration_ns)",
    "    parameters = (c_void_p * 1)(ctypes.addressof(duration))",
    "    one = [c_uint(1)] * 6",
    "    call('cuLaunchKernel', function, *one, c_uint(0), None, parameters, None)",
    "def synchronize(): call('cuCtxSynchronize')",
)
START = (*KERNEL, "start()", "spin = kernel()")


def is_idle(gate: WrittenGate, process: int = 0) -> bool:
    work = gate.work(process)
    return work.submitted == work.ended


@pytest.fixture
def gate(simulated: ProgramContainer) -> WrittenGate:
    return WrittenGate(simulated.tenant)


def started(container: ProgramContainer, *lines: str) -> subprocess.Popen[str]:
    return container.start(sys.executable, "-c", program(*START, *lines))


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def test_a_gate_holds_its_own_card_only(simulated_container: SimulatedContainer) -> None:
    container = simulated_container(2, [0, 1])
    first, second = WrittenGate(container.tenant, 0), WrittenGate(container.tenant, 1)
    first.set(abi.GATE_CLOSED)
    second.set(abi.GATE_METERED)
    lines = (
        *KERNEL,
        "call('cuInit', 0)",
        "held, free_one = context(0), context(1)",
        "spin = kernel()",
        "for _ in range(5): launch(spin, 1000)",
        "synchronize()",
        "say('passed')",
        "call('cuCtxSetCurrent', held)",
        "spin = kernel()",
        "launch(spin, 1000)",
        "synchronize()",
        "say('opened')",
    )
    process = container.start(sys.executable, "-c", program(*lines))
    assert "passed" in line_of(process)
    second.until(lambda work: (work.submitted, work.ended) == (5, 5))
    first.until(lambda work: work.waiting == 1)
    assert first.work().submitted == 0
    first.set(abi.GATE_WINDOW)
    assert "opened" in line_of(process)
    process.communicate()
    assert process.returncode == 0
    assert first.work().submitted == 1
    assert second.work().submitted == 5


def test_two_processes_share_one_window(simulated: ProgramContainer, gate: WrittenGate) -> None:
    """While one fills it the other may not begin."""
    gate.bound(MILLISECOND // 2)
    gate.set(abi.GATE_WINDOW)
    ready = ("say('ready')", "sys.stdin.readline()")
    other = started(simulated, *ready, "launch(spin, 1000)", "synchronize()")
    assert "ready" in line_of(other)
    long = started(simulated, "launch(spin, 500_000_000)", "say('given')", "synchronize()")
    assert "given" in line_of(long)
    assert other.stdin
    other.stdin.write("\n")
    other.stdin.flush()
    while gate.work(0).waiting == 0:
        assert other.poll() is None
    assert gate.work(0).submitted == 0
    assert not is_idle(gate, 1)
    for process in (other, long):
        process.communicate()
        assert process.returncode == 0
    assert (gate.work(0).submitted, gate.work(0).forced) == (1, 0)


def test_a_killed_process_blocks_no_other(simulated: ProgramContainer, gate: WrittenGate) -> None:
    gate.bound(MILLISECOND // 2)
    gate.set(abi.GATE_WINDOW)
    killed = started(simulated, "launch(spin, 3_000_000_000)", "say('given')", "synchronize()")
    assert "given" in line_of(killed)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not is_idle(gate, 0)  # nothing could say that it ended
    other = started(simulated, "launch(spin, 1000)", "synchronize()")
    other.communicate()
    assert other.returncode == 0
    assert is_idle(gate, 0)
    assert is_idle(gate, 1)
    assert gate.work(0).forced + gate.work(1).forced == 0


def test_a_forked_child_that_execs_is_counted_for_itself(
    simulated: ProgramContainer, gate: WrittenGate
) -> None:
    gate.set(abi.GATE_METERED)
    lines = (
        "launch(spin, 50_000_000)",
        "child = os.fork()",
        "if child == 0: os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])",
        "status = os.waitpid(child, 0)[1]",
        "launch(spin, 1000)",
        "synchronize()",
        "say(status)",
        "sys.stdin.read()",
    )
    own = program(*START, "launch(spin, 1000)", "synchronize()")
    process = simulated.start(sys.executable, "-c", program(*START, *lines), own)
    assert line_of(process) == "[0]\n"
    gate.until(lambda work: (work.submitted, work.ended) == (2, 2))
    assert gate.work(1).submitted == 1
    assert gate.work(0).busy_ns >= 50 * MILLISECOND
    process.communicate()


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_program_that_lets_go_of_the_library_may_end_at_any_time(
    end: str, simulated: ProgramContainer, gate: WrittenGate
) -> None:
    gate.set(abi.GATE_METERED)
    lines = (
        "for _ in range(20): launch(spin, 200_000)",
        "dlclose = ctypes.CDLL(None).dlclose",
        "dlclose.argtypes = [c_void_p]",
        "dlclose(cu._handle)",
        "say('closed')",
        end,
    )
    done = simulated.run(sys.executable, "-c", program(*START, *lines))
    assert done.stdout == '["closed"]\n', done.stderr
    assert done.returncode == (-9 if "kill" in end else 0)


def test_signals_are_not_for_the_polling_thread(
    simulated: ProgramContainer, gate: WrittenGate
) -> None:
    """A handler runs in the program's own thread, as it did without the library."""
    gate.set(abi.GATE_METERED)
    lines = (
        "launch(spin, 1_000_000)",
        "synchronize()",
        "blocked = [text.split('SigBlk:')[1].split()[0] for text in threads()]",
        "say(len(blocked), sum(int(mask, 16) & (1 << 14) > 0 for mask in blocked))",  # SIGTERM
    )
    assert succeeded(simulated.run(sys.executable, "-c", program(*START, *lines))) == "[2, 1]\n"


def test_a_program_that_only_meets_open_gates_has_no_thread_of_ours(
    simulated: ProgramContainer,
) -> None:
    lines = (
        "launch(spin, 1_000_000)",
        "synchronize()",
        "say(len(threads()))",
    )
    assert succeeded(simulated.run(sys.executable, "-c", program(*START, *lines))) == "[1]\n"


def test_without_a_new_thread_the_waiting_thread_polls(
    simulated: ProgramContainer, gate: WrittenGate
) -> None:
    gate.set(abi.GATE_WINDOW)
    lines = (
        "import resource",
        "resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))",
        "os.setresuid(65534, 65534, 65534)",  # root may have more than that
        "for _ in range(100): launch(spin, 200_000)",
        "synchronize()",
        "say(len(threads()))",
    )
    assert succeeded(simulated.run(sys.executable, "-c", program(*START, *lines))) == "[1]\n"
    assert gate.work().submitted == 100
    assert gate.work().forced == 0
