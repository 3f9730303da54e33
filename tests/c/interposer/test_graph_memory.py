# SPDX-License-Identifier: Apache-2.0
"""Graphs that allocate are held to the quota when they are uploaded or launched.

What the driver keeps for graphs is charged until it is trimmed. The simulated driver takes it in
units of 2 MiB, and graphs of one stream share it.
"""

from __future__ import annotations

import pytest

from gpushare import abi

from .conftest import ProgramContainer
from .tenant import MIB
from .test_pools import END, beside_the_driver

#: A program begins with a context; of what the card holds from then on, all is to be charged.
START = (
    "start()",
    "before = taken()",
    "sync = lambda: call('cuCtxSynchronize')",
    "trim = lambda: call('cuDeviceGraphMemTrim', 0)",
    "launch = lambda graph, stream=None: call('cuGraphLaunch', graph, stream)",
)


@pytest.fixture
def graphing(simulated: ProgramContainer) -> ProgramContainer:
    """A container with 100 MiB of a card, whose programs can ask the driver for its own figures."""
    return beside_the_driver(simulated)


def ends_at(container: ProgramContainer, *lines: str) -> list[object]:
    """Run a program that says something; return that, and what is charged at its end, in MiB."""
    *said, (charged, truth) = container.python(*START, *lines, END)
    assert charged == truth
    return [*(word for line in said for word in line), charged]


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize("start", ["cuGraphLaunch", "cuGraphUpload"])
class TestStart:
    def test_memory_is_charged_when_it_is_taken(
        self, start: str, suffix: str, graphing: ProgramContainer
    ) -> None:
        said = ends_at(
            graphing,
            "graph = instance(graph_of(20 * MIB))",
            "first = charged()",
            f"for _ in range(3): call('{start}{suffix}', graph, None)",
            "say(first)",
        )
        assert said == [0, 20]

    def test_a_graph_takes_the_last_byte_and_none_after_it(
        self, start: str, suffix: str, graphing: ProgramContainer
    ) -> None:
        said = ends_at(
            graphing,
            "fits, not_any_more = instance(graph_of(60 * MIB)), instance(graph_of(62 * MIB))",
            "alloc(40 * MIB)",
            f"say(result_of(call, '{start}{suffix}', not_any_more, None), charged() // MIB)",
            f"say(result_of(call, '{start}{suffix}', fits, None), charged() // MIB)",
            f"say(result_of(call, '{start}{suffix}', fits, None))",
        )
        assert said == [2, 40, 0, 100, 0, 100]

    def test_a_card_that_has_no_room_leaves_no_trace(
        self, start: str, suffix: str, graphing: ProgramContainer
    ) -> None:
        said = ends_at(
            graphing,
            "graph = instance(graph_of(60 * MIB))",
            "free, others = c_size_t(), c_uint64()",
            "behind = ctypes.CDLL(os.environ['BEHIND'])",
            "behind.cuMemGetInfo_v2(byref(free), byref(c_size_t()))",
            "assert behind.cuMemAlloc_v2(byref(others), c_size_t(free.value - 58 * MIB)) == 0",
            "before = taken()",
            f"say(result_of(call, '{start}{suffix}', graph, None), charged())",
        )
        assert said == [2, 0, 0]


@pytest.mark.parametrize(
    "instantiate",
    [
        "cuGraphInstantiate",
        "cuGraphInstantiate_v2",
        "cuGraphInstantiateWithFlags",
        "cuGraphInstantiateWithParams",
        "cuGraphInstantiateWithParams_ptsz",
    ],
)
def test_whatever_made_it_executable(instantiate: str, graphing: ProgramContainer) -> None:
    said = ends_at(
        graphing,
        f"graph = instance(graph_of(60 * MIB), '{instantiate}')",
        "alloc(50 * MIB)",
        "say(result_of(launch, graph))",
    )
    assert said == [2, 50]


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_an_upload_that_the_instantiation_asks_for(suffix: str, graphing: ProgramContainer) -> None:
    said = ends_at(
        graphing,
        f"made = instance(graph_of(60 * MIB), 'cuGraphInstantiateWithParams{suffix}', UPLOAD)",
        "first = charged() // MIB",
        "def more():",
        f"    instance(graph_of(62 * MIB), 'cuGraphInstantiateWithParams{suffix}', UPLOAD)",
        "alloc(40 * MIB)",
        "refused = result_of(more)",
        "launch(made)",
        "say(first, refused)",
    )
    assert said == [60, 2, 100]


class TestReserve:
    """What the driver keeps for graphs."""

    def test_a_graph_is_launched_again_where_no_room_is_left(
        self, graphing: ProgramContainer
    ) -> None:
        said = ends_at(
            graphing,
            "graph = instance(graph_of(100 * MIB))",
            "for _ in range(50): launch(graph)",
            "sync()",
        )
        assert said == [100]

    def test_it_is_charged_until_it_is_trimmed(self, graphing: ProgramContainer) -> None:
        said = ends_at(
            graphing,
            "graph = instance(graph_of(60 * MIB))",
            "launch(graph)",
            "sync()",
            "kept = charged() // MIB",
            "trim()",
            "trimmed = charged() // MIB",
            "launch(graph)",
            "say(kept, trimmed)",
        )
        assert said == [60, 0, 60]

    def test_it_outlives_the_graph(self, graphing: ProgramContainer) -> None:
        said = ends_at(
            graphing,
            "graph = instance(graph_of(60 * MIB))",
            "launch(graph)",
            "sync()",
            "call('cuGraphExecDestroy', graph)",
            "kept = charged() // MIB",
            "trim()",
            "say(kept)",
        )
        assert said == [60, 0]

    def test_it_is_its_own_kind(self, graphing: ProgramContainer) -> None:
        graphing.python(
            *START, "launch(instance(graph_of(60 * MIB)))", "alloc(2 * MIB)", "os._exit(0)"
        )
        assert graphing.tenant.kind(abi.KIND_GRAPH) == 60 * MIB
        assert graphing.tenant.used()[0] == 62 * MIB

    @pytest.mark.parametrize("allocate", ["alloc", "create", "alloc_async"])
    def test_it_is_given_up_before_anything_is_refused(
        self, allocate: str, graphing: ProgramContainer
    ) -> None:
        said = ends_at(
            graphing,
            "graph = instance(graph_of(60 * MIB))",
            "launch(graph)",
            "sync()",
            f"handle = {allocate}(64 * MIB)",
            "say(charged() // MIB, result_of(launch, graph))",
        )
        assert said == [64, 2, 64]

    def test_memory_that_a_graph_has_not_freed_stays_charged(
        self, graphing: ProgramContainer
    ) -> None:
        said = ends_at(
            graphing,
            "graph, pointer = graph_that_keeps(60 * MIB)",
            "graph = instance(graph)",
            "launch(graph)",
            "sync()",
            "first = result_of(alloc, 42 * MIB)",
            "free_async(pointer)",
            "kept = charged() // MIB",
            "sync()",
            "call('cuGraphExecDestroy', graph)",
            "say(first, kept, result_of(alloc, 100 * MIB))",
        )
        assert said == [2, 60, 0, 100]

    @pytest.mark.parametrize("before", ["launch(plain)", "launch(plain); upload(keeping)"])
    def test_memory_that_outlives_a_launch_belongs_to_no_other_graph(
        self, before: str, graphing: ProgramContainer
    ) -> None:
        said = ends_at(
            graphing,
            "upload = lambda graph: call('cuGraphUpload', graph, None)",
            "plain = instance(graph_of(60 * MIB))",
            "keeping, pointer = graph_that_keeps(60 * MIB)",
            "keeping = instance(keeping)",
            f"{before}",
            "first = result_of(launch, keeping)",
            "again = result_of(launch, plain)",
            "free_async(pointer)",
            "say(first, again, result_of(launch, keeping))",
        )
        assert said == [0, 2, 0, 60]

    def test_memory_that_outlives_a_launch_is_missing_to_other_graphs(
        self, graphing: ProgramContainer
    ) -> None:
        said = ends_at(
            graphing,
            "plain = instance(graph_of(60 * MIB))",
            "keeping, pointer = graph_that_keeps(40 * MIB)",
            "keeping = instance(keeping)",
            "launch(plain)",
            "launch(keeping)",
            "sync()",
            "trim()",
            "say(result_of(launch, plain), charged() // MIB)",
        )
        assert said == [0, 100, 100]

    def test_graphs_of_one_stream_share_it(self, graphing: ProgramContainer) -> None:
        """Though there would be no room for both."""
        said = ends_at(
            graphing,
            "one, other = instance(graph_of(60 * MIB)), instance(graph_of(80 * MIB))",
            "for _ in range(3): launch(one), launch(other)",
            "sync()",
        )
        assert said == [80]

    def test_graphs_of_two_streams_do_not(self, graphing: ProgramContainer) -> None:
        said = ends_at(
            graphing,
            "stream = c_void_p()",
            "call('cuStreamCreate', byref(stream), 1)",
            "one, other = instance(graph_of(20 * MIB)), instance(graph_of(30 * MIB))",
            "launch(one)",
            "launch(other, stream)",
        )
        assert said == [50]

    def test_nodes_that_follow_each_other_share_it(self, graphing: ProgramContainer) -> None:
        """All that they allocate together is more than the quota."""
        said = ends_at(
            graphing,
            "graph = instance(graph_of(*[40 * MIB] * 2))",
            "huge = instance(graph_of(*[30 * MIB] * 3))",
            "say(result_of(launch, graph), charged() // MIB, result_of(launch, huge))",
        )
        assert said == [0, 40, 0, 40]

    def test_a_context_takes_it_along(self, graphing: ProgramContainer) -> None:
        said = ends_at(
            graphing,
            "beside = c_void_p()",
            "call('cuCtxGetCurrent', byref(beside))",
            "handle = context()",
            "launch(instance(graph_of(60 * MIB)))",
            "call('cuCtxDestroy_v2', handle)",
            "call('cuCtxSetCurrent', beside)",
        )
        assert said == [0]


def test_child_graphs_are_looked_through(graphing: ProgramContainer) -> None:
    said = ends_at(
        graphing,
        "outer, inner = graph_new(), graph_of(50 * MIB)",
        "child = (c_uint64 * 32)(4, 0, inner.value, 1)",  # its owner is the node from now on
        "call('cuGraphAddNode', byref(c_void_p()), outer, None, c_size_t(0), child)",
        "outer = instance(outer)",
        "alloc(60 * MIB)",
        "say(result_of(launch, outer))",
    )
    assert said == [2, 60]


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_captured_allocation_is_charged_at_its_launch(
    suffix: str, graphing: ProgramContainer
) -> None:
    said = ends_at(
        graphing,
        "stream, graph, pointer = c_void_p(), c_void_p(), c_uint64()",
        "call('cuStreamCreate', byref(stream), 1)",
        f"call('cuStreamBeginCapture_v2{suffix}', stream, 2)",
        f"call('cuMemAllocAsync{suffix}', byref(pointer), c_size_t(60 * MIB), stream)",
        f"call('cuMemFreeAsync{suffix}', pointer, stream)",
        f"call('cuStreamEndCapture{suffix}', stream, byref(graph))",
        "captured = charged()",
        "graph = instance(graph)",
        "launch(graph, stream)",
        "launched = charged() // MIB",
        "call('cuStreamSynchronize', stream)",
        "trim()",
        "alloc(41 * MIB)",
        "say(captured, launched, result_of(launch, graph, stream))",
    )
    assert said == [0, 60, 2, 42]


def test_a_graph_that_allocates_nothing_needs_no_room(graphing: ProgramContainer) -> None:
    said = ends_at(
        graphing,
        "node, empty = c_void_p(), graph_new()",
        "call('cuGraphAddEmptyNode', byref(node), empty, None, c_size_t(0))",
        "allocates, empty = instance(graph_of(MIB)), instance(empty)",
        "alloc(100 * MIB)",
        "say(result_of(launch, allocates), result_of(launch, empty))",
    )
    assert said == [2, 0, 100]


def test_a_launch_that_fails_leaves_no_trace(graphing: ProgramContainer) -> None:
    said = ends_at(
        graphing,
        "graph = instance(graph_that_keeps(60 * MIB)[0])",
        "say([result_of(launch, graph) for _ in range(2)])",  # not freed yet
    )
    assert said == [[0, 1], 60]


def test_a_forked_child_has_none_of_its_parent_s_graphs(graphing: ProgramContainer) -> None:
    said = graphing.python(
        *START,
        "launch(instance(graph_of(60 * MIB)))",
        "child = os.fork()",
        "if child == 0:",
        "    result_of(alloc, 50 * MIB)",
        "    os._exit(0)",
        "os.waitpid(child, 0)",
        "say(charged() // MIB, result_of(alloc, 40 * MIB))",
    )
    assert said == [[60, 0]]
