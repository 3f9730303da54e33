# SPDX-License-Identifier: Apache-2.0
"""Every way of starting work on a card leads through the gate."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from gpushare import abi
from libhook.table import coverage
from tests.compiled import ROOT, figures

from .client import MIB
from .conftest import HERE, compile_c
from .container import ProgramContainer
from .gate import MILLISECOND, WrittenGate
from .rank import Rank

NOT_SUPPORTED: Final = 801
#: What was launched while the gate was open may still run during the first that is counted.
LEARNED_AFTER: Final = 3
#: Every symbol of the list, and what the driver answers to its call.
STARTS: Final = {
    symbol + form: 0 if word == "START" else NOT_SUPPORTED
    for word, more, symbol in re.findall(
        r"^(START|NOT_HERE)(\w*)\((\w+),", (HERE / "starts.inc").read_text(), re.MULTILINE
    )
    for form in {"", more.lower()}
}


@pytest.fixture(scope="session")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """starts.c, which has the driver that is open where it is loaded."""
    output = tmp_path_factory.mktemp("starts") / "starts.so"
    return compile_c(output, "starts.c", "-shared", "-fPIC")


Given = Callable[[], int]


@pytest.fixture
def given_ns(container: ProgramContainer, tmp_path: Path) -> Given:
    """Return the time of its first card that the driver was ever given, as the machine has it.

    Whatever stands before the driver has no part in this.
    """
    context = "((struct sim_device *)0)->cards[0].contexts"
    asked = {"count": "SIM_CONTEXTS", "bytes": f"sizeof(*{context})"}
    asked["first"] = "offsetof(struct sim_device, cards[0].contexts[0].submitted_ns)"
    found = figures(tmp_path, ROOT / "simulator/device.h", asked)
    first, size, count = (int(found[name]) for name in ("first", "bytes", "count"))

    def given() -> int:
        with container.device.open("rb") as file:
            file.seek(first)
            text = file.read(count * size)
        return sum(struct.unpack_from("<Q", text, n * size)[0] for n in range(count))

    return given


@pytest.fixture
def container(newest: ProgramContainer) -> ProgramContainer:
    newest.tenant.set_memory(1024 * MIB)
    return newest


@pytest.fixture
def gate(container: ProgramContainer) -> WrittenGate:
    return WrittenGate(container.tenant)


@pytest.fixture
def program(container: ProgramContainer, starts: Path) -> Iterator[Rank]:
    """One process that has the driver, and starts work on command."""
    words: dict[str, object] = {}

    def first() -> None:
        ctypes.CDLL(os.environ["LIBCUDA"], ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(starts))
        assert library.starts_open() == 0
        words["starts"] = library

    rank = Rank(container, first, words)
    yield rank
    rank.end()


def call(program: Rank, symbol: str) -> int:
    """Return what the driver answers."""
    return int(program.ask(f"starts.call_{symbol}()"))


def learn(program: Rank, gate: WrittenGate, symbol: str) -> None:
    """Have it launched, one at a time, until it is known what it costs."""
    for _ in range(LEARNED_AFTER):
        assert call(program, symbol) == 0
        gate.until(lambda work: work.submitted == work.ended)


def test_all_that_the_table_says_is_gated_is_tried_here() -> None:
    lines = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    gated = {
        symbol
        for symbol, entry in lines.items()
        if "gated: " in entry.reason and coverage.STARTS.search(entry.name)
    }
    assert sorted(STARTS) == sorted(gated)


def test_behind_a_closed_gate_no_work_reaches_the_driver(
    gate: WrittenGate, program: Rank, given_ns: Given
) -> None:
    for symbol, answer in STARTS.items():
        assert program.ask("synchronize()") is None
        given = given_ns()
        gate.set(abi.GATE_CLOSED)
        program.tell(f"starts.call_{symbol}()")
        assert gate.until(lambda work: work.waiting == 1).forced == 0, symbol
        assert given_ns() == given, symbol
        gate.set(abi.GATE_OPEN)
        assert program.heard() == answer, symbol
        assert gate.work().waiting == 0, symbol


def test_an_open_gate_counts_nothing_and_lets_all_pass(
    gate: WrittenGate, program: Rank, given_ns: Given
) -> None:
    gate.set(abi.GATE_OPEN)
    for symbol, answer in STARTS.items():
        given = given_ns()
        assert call(program, symbol) == answer, symbol
        # A prefetch takes no time of a simulated card.
        if not answer and "Prefetch" not in symbol:
            assert given_ns() > given, symbol
    assert gate.work().submitted == 0


def test_in_a_window_each_is_one_piece_of_work_that_ends(gate: WrittenGate, program: Rank) -> None:
    gate.set(abi.GATE_WINDOW)
    for symbol, answer in STARTS.items():
        before = gate.work()
        assert call(program, symbol) == answer, symbol
        assert program.ask("synchronize()") is None
        after = gate.until(lambda work: work.submitted == work.ended)
        if not answer:
            assert after.submitted - before.submitted == 1, symbol
        assert after.pending_ns == 0, symbol
    assert gate.work().forced == 0


@pytest.mark.parametrize("symbol", ["cuGraphLaunch", "cuGraphLaunch_ptsz"])
def test_a_graph_that_is_replayed_stays_in_its_window(
    symbol: str, gate: WrittenGate, program: Rank
) -> None:
    """Each replay is two kernels of a millisecond: of ten no more than two are ever pending."""
    assert program.ask(f"starts.starts_set_duration(c_uint64({MILLISECOND}))") == 0
    gate.set(abi.GATE_WINDOW)
    learn(program, gate, symbol)
    gate.bound(5 * MILLISECOND)
    before = gate.work().submitted
    program.tell(f"[starts.call_{symbol}() for _ in range(10)]")
    most = 0
    while (work := gate.work()).submitted < before + 10:
        most = max(most, work.submitted - work.ended)
    assert program.heard() == [0] * 10
    assert most <= 2
    after = gate.until(lambda work: work.submitted == work.ended)
    assert (after.submitted, after.forced) == (before + 10, 0)
    assert after.throttled_ns > 0
