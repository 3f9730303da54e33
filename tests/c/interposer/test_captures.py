# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Captures pass the gate from when they begin until they have ended, however that is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare import abi

from .client import *
from .container import ProgramContainer
from .gate import WrittenGate
from .rank import Rank

RELAXED, GLOBAL = 2, 0
UNMATCHED, INVALIDATED, UNSUPPORTED = 903, 901, 900


class Capturing:
    """Streams, and `fill`: work, of which a captured stream only makes a node."""

    def __init__(self) -> None:
        self.buffer = c_uint64(alloc(MIB))
        self.stream, self.other = stream_new(), stream_new()

    def fill(self, stream: c_void_p | None, form: str = "") -> int:
        row = (self.buffer, 0, c_size_t(MIB), stream)
        return result_of(call, f"cuMemsetD8Async{form}", *row)

    def end(self, stream: c_void_p | None, form: str = "") -> int:
        return result_of(call, f"cuStreamEndCapture{form}", stream, byref(c_void_p()))


def to_a_graph(own: Capturing) -> None:
    where = (graph_new(), None, None, c_size_t(0))
    call("cuStreamBeginCaptureToGraph", own.stream, *where, RELAXED)
    assert (own.fill(own.stream), own.end(own.stream)) == (0, 0)


def invalid(own: Capturing) -> None:
    call("cuStreamBeginCapture_v2", own.stream, GLOBAL)
    assert result_of(call, "cuStreamSynchronize", own.stream) == UNSUPPORTED
    assert own.fill(own.stream) == own.end(own.stream) == INVALIDATED


def forked(own: Capturing) -> None:
    call("cuStreamBeginCapture_v2", own.stream, RELAXED)
    event = made("cuEventCreate", 2)
    call("cuEventRecord", event, own.stream)
    call("cuStreamWaitEvent", own.other, event, 0)
    assert (own.fill(own.other), own.end(own.other)) == (0, UNMATCHED)
    assert (own.fill(own.other), own.fill(own.stream)) == (0, 0)
    call("cuEventRecord", event, own.other)
    call("cuStreamWaitEvent", own.stream, event, 0)
    assert own.end(own.stream) == 0


def per_thread(own: Capturing) -> None:
    assert result_of(call, "cuStreamBeginCapture_v2", None, RELAXED) == UNSUPPORTED
    call("cuStreamBeginCapture_v2_ptsz", None, RELAXED)
    assert (own.fill(None, "_ptsz"), own.end(None, "_ptsz")) == (0, 0)


def host_function(own: Capturing) -> None:
    """No capture: a function of the program passes a closed gate too."""
    note = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: None)
    call("cuLaunchHostFunc", own.stream, note, None)
    call("cuStreamSynchronize", own.stream)


@pytest.fixture
def capturing(simulated: ProgramContainer) -> Iterator[Rank]:
    made = Rank(simulated, words=globals())
    made.ask("Capturing()", "own")
    yield made
    made.kill()  # it waits
    made.end()


@pytest.mark.parametrize("way", [to_a_graph, invalid, forked, per_thread, host_function])
def test_nothing_waits_in_a_capture_and_everything_after_it(
    way: Callable[[Capturing], None], capturing: Rank
) -> None:
    gate = WrittenGate(capturing.container.tenant)
    gate.set(abi.GATE_CLOSED)
    assert capturing.ask(f"{way.__name__}(own)") is None
    capturing.tell("own.fill(own.stream)")
    assert gate.until(lambda work: work.waiting == 1).submitted == 0
