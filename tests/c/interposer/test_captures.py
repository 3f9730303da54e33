# SPDX-License-Identifier: Apache-2.0
"""Captures pass the gate from when they begin until they have ended, however that is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare import abi

from .conftest import ProgramContainer
from .conftest import program as program_of
from .gate import WrittenGate

#: Each program begins with these; `fill` is work, of which a captured stream only makes a node.
BEGIN = """
start()
buffer = alloc(MIB)

def stream_new():
    stream = c_void_p()
    call('cuStreamCreate', byref(stream), 1)
    return stream

def fill(stream):
    return result_of(call, 'cuMemsetD8Async', c_uint64(buffer), 0, c_size_t(MIB), stream)

def end(stream):
    graph = c_void_p()
    return result_of(call, 'cuStreamEndCapture', stream, byref(graph))

stream, other = stream_new(), stream_new()
sys.stdin.readline()
"""
RELAXED, GLOBAL = 2, 0
SUCCESS, UNMATCHED, INVALIDATED, ILLEGAL_STATE = 0, 903, 901, 401
UNSUPPORTED = 900


@pytest.fixture
def gate(simulated: ProgramContainer) -> WrittenGate:
    made = WrittenGate(simulated.tenant)
    made.set(abi.GATE_CLOSED)
    return made


@contextmanager
def saying(container: ProgramContainer, *lines: str) -> Iterator[list[str]]:
    """Run `lines` after BEGIN, the gate being closed from the first of them on."""
    said: list[str] = []
    with container.start(sys.executable, "-c", program_of(BEGIN, *lines)) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        for line in process.stdout:
            said.append(line.strip())
            if said[-1] == '["waits"]':
                break
        yield said
        process.kill()


WAITS = ("say('waits')", "fill(stream)")


@pytest.mark.parametrize(
    ("captured", "answers"),
    [
        (
            (
                "call('cuStreamBeginCapture', stream)",
                "say(fill(stream))",
                "say(end(stream), end(stream))",
            ),
            [f"[{SUCCESS}]", f"[{SUCCESS}, {ILLEGAL_STATE}]"],
        ),
        (
            (
                "graph = graph_new()",
                "where = (graph, None, None, c_size_t(0))",
                f"call('cuStreamBeginCaptureToGraph', stream, *where, {RELAXED})",
                "say(fill(stream), end(stream))",
            ),
            [f"[{SUCCESS}, {SUCCESS}]"],
        ),
        (
            (
                f"call('cuStreamBeginCapture_v2', stream, {GLOBAL})",
                "say(result_of(call, 'cuStreamSynchronize', stream))",
                "say(fill(stream))",
                "say(end(stream))",
            ),
            [f"[{UNSUPPORTED}]", f"[{INVALIDATED}]", f"[{INVALIDATED}]"],
        ),
        (
            (
                f"call('cuStreamBeginCapture_v2', stream, {RELAXED})",
                "event = c_void_p()",
                "call('cuEventCreate', byref(event), 2)",
                "call('cuEventRecord', event, stream)",
                "call('cuStreamWaitEvent', other, event, 0)",
                "say(fill(other))",
                "say(end(other))",
                "say(fill(other), fill(stream))",
                "call('cuEventRecord', event, other)",
                "call('cuStreamWaitEvent', stream, event, 0)",
                "say(end(stream))",
            ),
            [f"[{SUCCESS}]", f"[{UNMATCHED}]", f"[{SUCCESS}, {SUCCESS}]", f"[{SUCCESS}]"],
        ),
        (
            (
                "say(result_of(call, 'cuStreamBeginCapture_v2', None, 2))",
                "call('cuStreamBeginCapture_v2_ptsz', None, 2)",
                "row = (c_uint64(buffer), 0, c_size_t(MIB), None)",
                "say(result_of(call, 'cuMemsetD8Async_ptsz', *row))",
                "graph = c_void_p()",
                "say(result_of(call, 'cuStreamEndCapture_ptsz', None, byref(graph)))",
            ),
            [f"[{UNSUPPORTED}]", f"[{SUCCESS}]", f"[{SUCCESS}]"],
        ),
    ],
    ids=["plain", "to-a-graph", "invalid", "forked", "per-thread"],
)
def test_nothing_waits_in_a_capture_and_everything_after_it(
    captured: tuple[str, ...], answers: list[str], simulated: ProgramContainer, gate: WrittenGate
) -> None:
    with saying(simulated, *captured, *WAITS) as said:
        assert said == [*answers, '["waits"]']
        assert gate.until(lambda work: work.waiting == 1).submitted == 0


def test_a_stream_that_is_destroyed_in_its_capture_lets_no_other_pass(
    simulated: ProgramContainer, gate: WrittenGate
) -> None:
    lines = ("call('cuStreamBeginCapture_v2', other, 2)", "call('cuStreamDestroy_v2', other)")
    with saying(simulated, *lines, *WAITS):
        gate.until(lambda work: work.waiting == 1)


def test_a_function_of_the_program_passes_a_closed_gate(
    simulated: ProgramContainer, gate: WrittenGate
) -> None:
    lines = (
        "note = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: None)",
        "say(result_of(call, 'cuLaunchHostFunc', stream, note, None))",
        "call('cuStreamSynchronize', stream)",
    )
    with saying(simulated, *lines, *WAITS) as said:
        assert said == ["[0]", '["waits"]']
        gate.until(lambda work: work.waiting == 1)
