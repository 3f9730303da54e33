# SPDX-License-Identifier: Apache-2.0
"""Real engines, twice: this machine's packages, and Debian 13's.

How to write a test of an engine:

* Take `stage`. It is a `tests.stack.Stack` (a simulated card, gpushared, a launcher) whose engines
  run in a mount namespace of their own, with the distribution's files, an empty /run and no
  configuration in /etc. The test runs once per distribution; `stage.place.distribution` says which.
* `stage.argv("podman", "run", ...)` is the command line that runs a program of the distribution in
  there; with `env=stage.environment`, plain `docker`, `docker-compose`, `ctr` and `podman` are the
  distribution's too. A program in the background is `stage.start(name, stage.argv(...))`: it ends
  with the stage, and its log is `stage.root/name.log`.
* Files that both sides see (bundles, configuration, sockets, an engine's storage) belong beneath
  `stage.root`, which has the same name inside. Cgroups belong beneath `/{stage.cgroup}`.
* gpushared runs outside and puts its mounts inside (`mount_namespace`), as a hardened unit does.
* `stage` is shared by the session: leave no container and no reservation (`released` waits for
  that, and every test ends with it), and start an engine in a session fixture of your file that
  depends on `stage`; pytest runs all tests of one distribution before those of the other.
* A test that stops gpushared, needs another low-level runtime, or a cgroup layout, makes its own:
  `with Stack(distribution=distribution, cgroups="v2", runtime="crun") as own`. A place costs 50 ms,
  gpushared 0.2 s, containerd 0.2 s, dockerd 0.5 s. `cgroups` is "machine" (as it has them; crun
  refuses v1 and v2 together), "v1" or "v2".
* `booted` is a stage for the engines of a Debian 13 with systemd as its first process (1.5 s): real
  scopes and slices, and `stage.argv("systemctl", "daemon-reload")`. gpushared is beside it, with
  its process numbers, so a pid that gpushared or an engine tells is one of the place's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare.client import Client
from gpushare.verify import Containerd, Docker
from tests.stack import Stack
from tests.stack.distribution import DEBIAN13, DISTRIBUTIONS, Distribution
from tests.system.waiting import wait_until


@pytest.fixture(scope="session", params=DISTRIBUTIONS, ids=lambda each: each.name)
def distribution(request: pytest.FixtureRequest) -> Distribution:
    found: Distribution = request.param
    return found


@pytest.fixture(scope="session")
def stage(distribution: Distribution) -> Iterator[Stack]:
    """A card, gpushared and a place for the engines of the distribution."""
    with Stack(distribution=distribution) as made:
        made.start_daemon()
        yield made


@pytest.fixture(scope="session")
def staged_containerd(stage: Stack) -> Iterator[Containerd]:
    """The distribution's containerd, with the probe's image."""
    engine = stage.start_containerd()
    engine.prepare(stage.installation.probe)
    yield engine
    engine.finish()


@pytest.fixture
def released(stage: Stack) -> Iterator[None]:
    """After the test: what it reserved is given back."""
    yield
    wait_until(lambda: not Client(stage.socket).tenants())


@pytest.fixture(scope="session")
def docker(stage: Stack, staged_containerd: Containerd) -> Docker:
    """The distribution's dockerd, gpushare its default runtime, with the probe's image."""
    assert staged_containerd.env
    engine = stage.start_docker("--default-runtime=gpushare")
    engine.prepare(stage.installation.probe)
    return engine


@pytest.fixture(scope="module")
def booted() -> Iterator[Stack]:
    """A card and gpushared in a Debian 13 that systemd has booted, on cgroup v2."""
    with Stack(distribution=DEBIAN13, cgroups="v2", booted=True) as made:
        made.start_daemon()
        yield made
