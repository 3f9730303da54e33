# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Graphs that allocate are held to the quota when they are uploaded or launched.

What the driver keeps for graphs is charged until it is trimmed. The simulated driver takes it in
units of 2 MiB, and graphs of one stream share it.
"""

from __future__ import annotations

import pytest

from .client import *
from .inside import inside


def executable(*mib: int) -> c_void_p:
    """A graph that allocates and frees so many MiB, one after the other."""
    return instance(graph_of(*(each * MIB for each in mib)))


def executable_that_keeps(mib: int) -> tuple[c_void_p, int]:
    graph, pointer = graph_that_keeps(mib * MIB)
    return instance(graph), pointer


@pytest.mark.parametrize("started", ["cuGraphLaunch", "cuGraphUpload"])
@inside()
def test_what_a_card_keeps_of_a_graph_that_it_refuses_is_charged(started: str) -> None:
    """A chunk of 32 MiB at each refusal while there is one: retries take no more here."""
    holds = begin()
    graph, others = executable(60), c_uint64()
    left, total = c_size_t(), c_size_t()
    behind.cuMemGetInfo_v2(byref(left), byref(total))
    before = taken()
    assert behind.cuMemAlloc_v2(byref(others), c_size_t(left.value - 58 * MIB)) == 0
    assert result_of(call, started, graph, None) == OUT_OF_MEMORY
    assert behind.cuMemFree_v2(others) == 0
    assert taken() - before == 32 * MIB
    holds(32)
    trim_graphs()
    launch_graph(graph)
    holds(92)


@pytest.mark.parametrize("allocate", [alloc, create, alloc_async])
@inside()
def test_it_is_given_up_before_anything_is_refused(allocate: Callable[[int], int]) -> None:
    holds = begin()
    graph = executable(60)
    launch_graph(graph)
    synchronize()
    allocate(64 * MIB)
    holds(64)
    assert result_of(launch_graph, graph) == OUT_OF_MEMORY


@pytest.mark.parametrize("uploaded", [False, True])
@inside()
def test_memory_that_outlives_a_launch_belongs_to_no_other_graph(uploaded: bool) -> None:
    holds = begin()
    plain = executable(60)
    keeping, pointer = executable_that_keeps(60)
    launch_graph(plain)
    if uploaded:
        call("cuGraphUpload", keeping, None)
    launch_graph(keeping)
    assert result_of(launch_graph, plain) == OUT_OF_MEMORY
    free_async(pointer)
    launch_graph(keeping)
    holds(60)


@inside()
def test_child_graphs_are_looked_through() -> None:
    holds = begin()
    outer, inner = graph_new(), graph_of(50 * MIB)
    child = (c_uint64 * 32)(4, 0, inner.value or 0, 1)  # its owner is the node from now on
    made("cuGraphAddNode", outer, None, c_size_t(0), child)
    outer = instance(outer)
    alloc(60 * MIB)
    assert result_of(launch_graph, outer) == OUT_OF_MEMORY
    holds(60)


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@inside()
def test_a_captured_allocation_is_charged_at_its_launch(suffix: str) -> None:
    holds = begin()
    stream = stream_new()
    call(f"cuStreamBeginCapture_v2{suffix}", stream, 2)
    pointer = alloc_async(60 * MIB, suffix, stream)
    call(f"cuMemFreeAsync{suffix}", c_uint64(pointer), stream)
    graph = c_void_p()
    call(f"cuStreamEndCapture{suffix}", stream, byref(graph))
    holds(0)
    graph = instance(graph)
    launch_graph(graph, stream)
    holds(60)
    call("cuStreamSynchronize", stream)
    trim_graphs()
    alloc(41 * MIB)
    assert result_of(launch_graph, graph, stream) == OUT_OF_MEMORY
