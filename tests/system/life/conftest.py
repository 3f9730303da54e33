# SPDX-License-Identifier: Apache-2.0
"""Each case under each runtime, for a container that asks for nothing and for one with a quota."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.stack.shared import SharedStack
from tests.system.low_level import LowLevelRuntime, behind_launcher

from .pair import COURSES, RuntimeCase, RuntimePair

Nodes = Callable[[str], SharedStack]


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """A daemon for each way to bind; crun wants one layout of cgroups alone."""

    def made(bind: str) -> Stack:
        stack = Stack(distribution=HOST, cgroups="v1")
        stack.configure(bind=bind)
        return stack

    with ExitStack() as kept:
        yield cache(lambda bind: kept.enter_context(SharedStack(lambda: made(bind))))


@pytest.fixture(params=COURSES, ids=str)
def course(request: pytest.FixtureRequest) -> RuntimeCase:
    found: RuntimeCase = request.param
    return found


@pytest.fixture
def pair(course: RuntimeCase, nodes: Nodes) -> Iterator[RuntimePair]:
    with nodes(course.kind.bind).lent() as node:
        made = RuntimePair(course.kind, node.root)
        assert node.place is not None
        argv = node.place.argv(HOST.find(course.runtime))
        socket = node.socket if course.kind.daemon else made.folder / "nobody-listens"
        launcher = behind_launcher(made.folder / "bin", argv, socket)
        made.bare = LowLevelRuntime(argv, made.folder / "state")
        made.launched = LowLevelRuntime(launcher, made.folder / "state")
        yield made
