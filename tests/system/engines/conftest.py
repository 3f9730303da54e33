# SPDX-License-Identifier: Apache-2.0
"""Real engines: this machine's packages, and for a few tests those of other distributions.

How to write a test of an engine:

* Take `stage`, or an engine on it: `docker`, `ctr`, `podman`, `node` (containerd with CRI). The
  stage is a `tests.stack.Stack` (a simulated card, gpushared, a launcher) whose engines run in a
  mount namespace of their own, with the distribution's files, an empty /run and no configuration
  in /etc. It is shared by the session: `released` waits after each test until nothing is reserved.
* `stage.argv("podman", "run", ...)` is the command line that runs a program of the distribution in
  there; with `env=stage.environment`, plain `docker`, `docker-compose`, `ctr` and `podman` are the
  distribution's too. A program in the background is `stage.start(name, stage.argv(...))`: it ends
  with the stage, and its log is `stage.root/name.log`.
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

import pytest

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.system.waiting import wait_until

from .ctr import Ctr, import_shell
from .docker_client import DockerClient
from .node import CriNode
from .podman import Podman


@pytest.fixture(scope="session")
def stage() -> Iterator[Stack]:
    """A card, gpushared and a place for this machine's engines."""
    with Stack(distribution=HOST) as made:
        made.start_daemon()
        yield made


@pytest.fixture
def released(stage: Stack) -> Iterator[None]:
    """After the test: what it reserved is given back."""
    yield
    wait_until(lambda: not Client(stage.socket).tenants())


@pytest.fixture(scope="session")
def containerd(stage: Stack) -> Stack:
    """The stage, with its containerd."""
    stage.start_containerd()
    return stage


@pytest.fixture(scope="session")
def dockerd(containerd: Stack) -> Stack:
    """The stage, with its dockerd: gpushare is the default runtime, the probe's image is there."""
    engine = containerd.start_docker("--default-runtime=gpushare")
    engine.prepare(containerd.installation.probe)
    return containerd


@pytest.fixture
def docker(dockerd: Stack, released: None) -> DockerClient:  # noqa: ARG001 - looks afterwards
    return DockerClient(dockerd)


@pytest.fixture(scope="session")
def shell(containerd: Stack) -> None:
    import_shell(containerd)


@pytest.fixture
def ctr(containerd: Stack, shell: None, released: None) -> Iterator[Ctr]:  # noqa: ARG001 - as above
    made = Ctr(containerd)
    yield made
    made.remove()


@pytest.fixture(scope="session")
def own_podman(stage: Stack) -> Podman:
    return Podman(stage)


@pytest.fixture
def podman(own_podman: Podman, released: None) -> Podman:  # noqa: ARG001 - looks afterwards
    return own_podman


@pytest.fixture(scope="session")
def own_node(stage: Stack) -> Iterator[CriNode]:
    with CriNode(stage) as made:
        yield made


@pytest.fixture
def node(own_node: CriNode, released: None) -> CriNode:  # noqa: ARG001 - looks afterwards
    return own_node
