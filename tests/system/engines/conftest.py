# SPDX-License-Identifier: Apache-2.0
"""Real engines: this machine's packages, and for a few tests those of other distributions.

How to write a test of an engine:

* Take an engine: `docker`, `podman`, `node` (containerd with CRI). Its stack is empty before
  each test, which may leave nothing in it (tests/stack/shared.py). It is a
  `tests.stack.Stack` (a simulated card, gpushared, a launcher) whose engines run in a mount
  namespace of their own, with the distribution's files, an empty /run and no configuration in /etc.
* `stage.argv("podman", "run", ...)` is the command line that runs a program of the distribution in
  there; with `env=stage.environment`, plain `docker`, `docker-compose` and `podman` are the
  distribution's too.
* Files that both sides see (bundles, configuration, sockets, an engine's storage) belong beneath
  `stage.root`, which has the same name inside. Cgroups belong beneath `/{stage.cgroup}`.
* gpushared runs outside and puts its mounts inside (`mount_namespace`), as a hardened unit does.
* A test that stops gpushared, needs another low-level runtime, or a cgroup layout, makes its own:
  `with Stack(distribution=HOST, cgroups="v2", runtime="crun") as own`. A place costs 50 ms,
  gpushared 0.2 s, containerd 0.2 s, dockerd 0.5 s. `cgroups` is "machine" (as it has them; crun
  refuses v1 and v2 together), "v1" or "v2".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.stack.shared import SharedStack

from .docker_client import DockerClient
from .node import CriNode
from .podman import Podman

#: Once for each stack that is lent.
_podman_of = lru_cache(maxsize=1)(Podman)
_node_of = lru_cache(maxsize=1)(CriNode)


def made() -> Stack:
    """A card and a place for this machine's engines."""
    return Stack(distribution=HOST)


@pytest.fixture(scope="session")
def shared_stage() -> Iterator[SharedStack]:
    with SharedStack(made, "--default-runtime=gpushare") as shared:
        yield shared


@pytest.fixture
def stage(shared_stage: SharedStack) -> Iterator[Stack]:
    with shared_stage.lent() as stack:
        yield stack


@pytest.fixture
def docker(shared_stage: SharedStack, stage: Stack) -> DockerClient:
    """docker, with the probe's image; gpushare is its default runtime."""
    assert shared_stage.docker.env
    return DockerClient(stage)


@pytest.fixture
def podman(stage: Stack) -> Podman:
    return _podman_of(stage)


@pytest.fixture(scope="session")
def shared_node() -> Iterator[SharedStack]:
    with SharedStack(made) as shared:
        yield shared


@pytest.fixture
def node(shared_node: SharedStack) -> Iterator[CriNode]:
    with shared_node.lent() as stack:
        yield _node_of(stack)
