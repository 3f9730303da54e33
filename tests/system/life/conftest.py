# SPDX-License-Identifier: Apache-2.0
"""Each case under each runtime, for a container that asks for nothing and for one with a quota."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
import yaml

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.distribution import Distribution
from tests.system.low_level import LowLevelRuntime, behind_launcher
from tests.system.waiting import wait_until

from .pair import COURSES, RuntimeCase, RuntimePair

Nodes = Callable[[Distribution, str], Stack]


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """A daemon for each distribution and way to bind; crun wants one layout of cgroups alone."""
    with ExitStack() as kept:

        @cache
        def node(distribution: Distribution, bind: str) -> Stack:
            made = kept.enter_context(Stack(distribution=distribution, cgroups="v1"))
            settings = yaml.safe_load(made.config.read_text())
            made.config.write_text(yaml.safe_dump({**settings, "bind": bind}))
            made.start_daemon()
            return made

        yield node


@pytest.fixture(params=COURSES, ids=str)
def course(request: pytest.FixtureRequest) -> RuntimeCase:
    found: RuntimeCase = request.param
    return found


@pytest.fixture
def pair(course: RuntimeCase, nodes: Nodes) -> Iterator[RuntimePair]:
    node = nodes(course.distribution, course.kind.bind)
    made = RuntimePair(course.kind, node.root)
    assert node.place is not None
    runtime = node.place.distribution.find(course.runtime)
    argv = node.place.argv(runtime)
    socket = node.socket if course.kind.daemon else made.folder / "nobody-listens"
    made.bare = LowLevelRuntime(argv, made.folder / "state")
    made.launched = LowLevelRuntime(
        behind_launcher(made.folder / "bin", argv, socket), made.folder / "state"
    )
    yield made
    # Whatever a case did with its container, nothing stays allocated to it.
    wait_until(lambda: not _promised(node, made.id))


def _promised(node: Stack, identity: str) -> bool:
    return any(row["id"] == identity for row in Client(node.socket).tenants())
