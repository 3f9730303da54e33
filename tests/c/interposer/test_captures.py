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


def per_thread(own: Capturing) -> None:
    assert result_of(call, "cuStreamBeginCapture_v2", None, RELAXED) == UNSUPPORTED
    call("cuStreamBeginCapture_v2_ptsz", None, RELAXED)
    assert (own.fill(None, "_ptsz"), own.end(None, "_ptsz")) == (0, 0)


@pytest.fixture
def capturing(simulated: ProgramContainer) -> Iterator[Rank]:
    made = Rank(simulated, words=globals())
    made.ask("Capturing()", "own")
    yield made
    made.kill()  # it waits
    made.end()


@pytest.mark.parametrize("way", [to_a_graph, invalid, per_thread])
def test_nothing_waits_in_a_capture_and_everything_after_it(
    way: Callable[[Capturing], None], capturing: Rank
) -> None:
    gate = WrittenGate(capturing.container.tenant)
    gate.set(abi.GATE_CLOSED)
    assert capturing.ask(f"{way.__name__}(own)") is None
    capturing.tell("own.fill(own.stream)")
    assert gate.until(lambda work: work.waiting == 1).submitted == 0
