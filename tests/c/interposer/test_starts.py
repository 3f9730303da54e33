# SPDX-License-Identifier: Apache-2.0
"""Every way of starting work on a card, by every way to the driver, leads through the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from gpushare import abi, simulator
from libhook.table import coverage

from .conftest import HERE, ROOT, T4, compile_c
from .container import ProgramContainer
from .gate import MILLISECOND, WrittenGate
from .starter import Starter
from .tenant import MIB, InterposedTenant
from .test_reach import LOOKUPS

NOT_SUPPORTED: Final = 801
#: What was launched while the gate was open may still run during the first that is counted.
LEARNED_AFTER: Final = 3
PROGRAM: Final = ("starts_program.c", *(str(HERE / name) for name in ("starts.c", "lookups.c")))


@pytest.fixture(scope="session")
def starts_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """starts_program.c, which finds the driver in the given way."""
    return str(compile_c(tmp_path_factory.mktemp("starts") / "starts", *PROGRAM, "-lpthread"))


@pytest.fixture(scope="session")
def linked_starts_program(tmp_path_factory: pytest.TempPathFactory, simulator_filters: Path) -> str:
    """starts_program.c, linked against the driver's library."""
    output = tmp_path_factory.mktemp("starts") / "linked"
    library = str(simulator_filters / "libcuda.so.1")
    return str(compile_c(output, *PROGRAM, "-DLINKED", library, "-lpthread"))


@pytest.fixture
def container(tmp_path: Path, simulator_filters: Path) -> ProgramContainer:
    """A container with a card of a driver that has every call of the table."""
    made = simulator.create(
        tmp_path / "cards", T4, folder=simulator_filters / "simulator",
        cuda_version="13.5", driver_version="600.10",
    )  # fmt: skip
    tenant = InterposedTenant(tmp_path / "tenant", made.uuids, 1024 * MIB)
    env = dict(made.env) | {"LIBCUDA": str(simulator_filters / "libcuda.so.1")}
    return ProgramContainer(simulator_filters, tenant, env)


@pytest.fixture
def gate(container: ProgramContainer) -> WrittenGate:
    return WrittenGate(container.tenant)


def learn(program: Starter, gate: WrittenGate, symbol: str) -> None:
    """Have it launched, one at a time, until it is known what it costs."""
    for _ in range(LEARNED_AFTER):
        assert program.call(symbol) == 0
        gate.until(lambda work: work.submitted == work.ended)


def answer(kind: str) -> int:
    """What the driver says to a call of that kind."""
    return NOT_SUPPORTED if kind == "none" else 0


def test_all_that_the_table_says_is_gated_is_tried_here() -> None:
    lines = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    gated = {
        symbol
        for symbol, entry in lines.items()
        if "gated: " in entry.reason and coverage.STARTS.search(entry.name)
    }
    text = (ROOT / "tests/c/interposer/starts.inc").read_text()
    tried = [line.split("(")[1].split(",")[0] for line in text.splitlines() if line[:1].isupper()]
    assert sorted(tried) == sorted(gated)


@pytest.mark.parametrize("lookup", [*LOOKUPS, "linked"])
def test_behind_a_closed_gate_no_work_reaches_the_driver(
    lookup: str,
    container: ProgramContainer,
    gate: WrittenGate,
    starts_program: str,
    linked_starts_program: str,
) -> None:
    path = linked_starts_program if lookup == "linked" else starts_program
    with Starter(container, path, lookup) as program:
        for symbol, kind in program.kinds.items():
            program.synchronize()
            given = program.given_ns()
            gate.set(abi.GATE_CLOSED)
            program.start(symbol)
            assert gate.until(lambda work: work.waiting == 1).forced == 0, symbol
            assert program.given_ns() == given, symbol
            gate.set(abi.GATE_OPEN)
            assert program.join() == answer(kind), symbol
            assert gate.work().waiting == 0, symbol


@pytest.mark.parametrize("lookup", ["dlopen", "procaddress", "procaddress-per-thread"])
def test_an_open_gate_counts_nothing_and_lets_all_pass(
    lookup: str, container: ProgramContainer, gate: WrittenGate, starts_program: str
) -> None:
    with Starter(container, starts_program, lookup) as program:
        gate.set(abi.GATE_OPEN)
        for symbol, kind in program.kinds.items():
            given = program.given_ns()
            assert program.call(symbol) == answer(kind), symbol
            # A prefetch takes no time of a simulated card.
            if kind != "none" and "Prefetch" not in symbol:
                assert program.given_ns() > given, symbol
        assert gate.work().submitted == 0


def test_in_a_window_each_is_one_piece_of_work_that_ends(
    container: ProgramContainer, gate: WrittenGate, starts_program: str
) -> None:
    with Starter(container, starts_program) as program:
        gate.set(abi.GATE_WINDOW)
        for symbol, kind in program.kinds.items():
            before = gate.work()
            assert program.call(symbol) == answer(kind), symbol
            program.synchronize()
            after = gate.until(lambda work: work.submitted == work.ended)
            if kind != "none":
                assert after.submitted - before.submitted == 1, symbol
            assert after.pending_ns == 0, symbol
        assert gate.work().forced == 0


@pytest.mark.parametrize("symbol", ["cuGraphLaunch", "cuGraphLaunch_ptsz"])
def test_a_graph_that_is_replayed_stays_in_its_window(
    symbol: str, container: ProgramContainer, gate: WrittenGate, starts_program: str
) -> None:
    """Each replay is two kernels of a millisecond: of ten no more than two are ever pending."""
    with Starter(container, starts_program) as program:
        program.set_duration(MILLISECOND)
        gate.set(abi.GATE_WINDOW)
        learn(program, gate, symbol)
        gate.bound(5 * MILLISECOND)
        before = gate.work().submitted
        program.start(symbol, 10)
        most = 0
        while (work := gate.work()).submitted < before + 10:
            most = max(most, work.submitted - work.ended)
        assert program.join() == 0
        assert most <= 2
        after = gate.until(lambda work: work.submitted == work.ended)
        assert (after.submitted, after.forced) == (before + 10, 0)
        assert after.throttled_ns > 0
