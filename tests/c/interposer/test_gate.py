# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Programs in several processes, and on several cards, at gates that are not open.

What one process does at a gate is in test_gate.c and test_gate_ends.c.
"""

from __future__ import annotations

import sys

import pytest

from gpushare import abi

from .client import *
from .conftest import SimulatedContainer
from .container import ProgramContainer, program
from .gate import MILLISECOND, WrittenGate
from .inside import inside
from .rank import Rank


@pytest.fixture
def gate(simulated: ProgramContainer) -> WrittenGate:
    return WrittenGate(simulated.tenant)


def test_a_gate_holds_its_own_card_only(simulated_container: SimulatedContainer) -> None:
    container = simulated_container(2, [0, 1])
    first, second = WrittenGate(container.tenant, 0), WrittenGate(container.tenant, 1)
    first.set(abi.GATE_CLOSED)
    second.set(abi.GATE_METERED)
    rank = Rank(container)
    rank.ask("context(1)")
    rank.ask("[launch(kernel(), 1000) for _ in range(5)]")
    rank.ask("synchronize()")
    second.until(lambda work: (work.submitted, work.ended) == (5, 5))
    rank.ask("call('cuCtxPopCurrent_v2', byref(c_void_p()))")
    rank.tell("launch(kernel(), 1000)")
    first.until(lambda work: work.waiting == 1)
    assert first.work().submitted == 0
    first.set(abi.GATE_WINDOW)
    rank.heard()
    assert (first.work().submitted, second.work().submitted) == (1, 5)
    rank.end()


def test_a_killed_process_blocks_no_other(simulated: ProgramContainer, gate: WrittenGate) -> None:
    gate.bound(MILLISECOND // 2)
    gate.set(abi.GATE_WINDOW)
    killed = Rank(simulated)
    killed.ask("launch(kernel(), 3_000_000_000)")
    killed.kill()
    killed.end()
    assert gate.work().submitted != gate.work().ended  # nothing could say that it ended
    other = Rank(simulated)
    other.ask("launch(kernel(), 1000)")
    other.ask("synchronize()")
    for number in (0, 1):
        work = gate.until(lambda work: work.submitted == work.ended, process=number)
        assert work.forced == 0
    other.end()


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_program_that_lets_go_of_the_library_may_end_at_any_time(
    end: str, simulated: ProgramContainer, gate: WrittenGate
) -> None:
    gate.set(abi.GATE_METERED)
    lines = (
        "start()",
        "spin = kernel()",
        "for _ in range(20): launch(spin, 200_000)",
        "dlclose = ctypes.CDLL(None).dlclose",
        "dlclose.argtypes = [c_void_p]",
        "dlclose(cu.loaded()._handle)",
        "say('closed')",
        end,
    )
    done = simulated.run(sys.executable, "-c", program(*lines))
    assert done.stdout == '["closed"]\n', done.stderr
    assert done.returncode == (-9 if "kill" in end else 0)


@inside()
def test_signals_are_not_for_the_polling_thread_of_a_gate_that_is_not_open(
    simulated: ProgramContainer,
) -> None:
    """A handler runs in the program's own thread, as it did without the library."""
    start()
    spin = kernel()
    launch(spin, 1_000_000)
    synchronize()
    assert len(threads()) == 1
    WrittenGate(simulated.tenant).set(abi.GATE_METERED)
    launch(spin, 1_000_000)
    synchronize()
    blocked = [int(text.split("SigBlk:")[1].split()[0], 16) >> 14 & 1 for text in threads()]
    assert sorted(blocked) == [0, 1]  # SIGTERM
