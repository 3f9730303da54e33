# SPDX-License-Identifier: Apache-2.0
"""Engines with each way to bind: by the launcher, and by the createRuntime hook.

The launcher is the parent of the low-level runtime: what an engine's shim sees of it (exit status,
terminal, pid file, signals, whose child the container's process is) must be as with runc alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.system.waiting import wait_until

from .ctr import BUSYBOX, Ctr, import_shell
from .docker_client import FOUR_GIB, GIB, DockerClient, holds
from .node import CriNode
from .slices import allocated, assert_slice, probing


@pytest.fixture(scope="module", params=["launcher", "hook"])
def bind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def own(bind: str) -> Iterator[Stack]:
    with Stack(distribution=HOST) as stack:
        settings = yaml.safe_load(stack.config.read_text())
        stack.config.write_text(yaml.safe_dump({**settings, "bind": bind}))
        stack.start_daemon()
        yield stack


@pytest.fixture(autouse=True)
def released(own: Stack) -> Iterator[None]:
    """After the test: what it reserved is given back."""
    yield
    wait_until(lambda: not Client(own.socket).tenants())


@pytest.fixture(scope="module")
def containerd(own: Stack) -> Stack:
    own.start_containerd()
    import_shell(own)
    return own


@pytest.fixture(scope="module")
def client(containerd: Stack) -> DockerClient:
    docker = containerd.start_docker("--default-runtime=gpushare")
    docker.prepare(containerd.installation.probe)
    return DockerClient(containerd)


@pytest.fixture
def ctr(containerd: Stack) -> Iterator[Ctr]:
    made = Ctr(containerd)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def node(own: Stack) -> Iterator[CriNode]:
    with CriNode(own) as made:
        yield made


def assert_bound(own: Stack, bind: str) -> None:
    """The one container is bound, and its spec has a hook that does it, or has none."""
    [row] = Client(own.socket).tenants()
    assert row["state"] == "bound"
    _, record = (own.root / "run/ledger" / row["key"]).read_text().splitlines()
    bundle = json.loads(record)["record"]["bundle"]
    words = own.argv("cat", f"{bundle}/config.json")
    spec = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    stages = {
        stage
        for stage, hooks in spec.get("hooks", {}).items()
        if any("--key" in hook.get("args", ()) for hook in hooks)
    }
    assert stages == ({"createRuntime"} if bind == "hook" else set())


@pytest.mark.gate
def test_docker_runs_restarts_and_stops(own: Stack, client: DockerClient, bind: str) -> None:
    with client.background("kept", "--restart", "always", *FOUR_GIB) as name:
        assert_bound(own, bind)
        before = client.state(name)
        os.kill(before["Pid"], signal.SIGKILL)
        wait_until(lambda: client.state(name)["RestartCount"] > before["RestartCount"])
        wait_until(lambda: client.state(name)["Status"] == "running")
        with client.exec(name) as tenant:
            holds(tenant)
        client("stop", name)
        assert client.state(name)["ExitCode"] == 128 + signal.SIGKILL  # whose child it is
        wait_until(lambda: client.quotas() == {})
        client("start", name)
        with client.exec(name) as tenant:
            holds(tenant)
        client("pause", name)
        assert client.state(name)["Status"] == "paused"
        client("unpause", name)


@pytest.mark.gate
def test_ctr_runs_executes_and_kills(ctr: Ctr, bind: str) -> None:
    pid_file = ctr.stage.root / f"{ctr.name}.pid"
    ctr.start("--pid-file", str(pid_file))
    assert_bound(ctr.stage, bind)
    [row] = Client(ctr.stage.socket).tenants()
    assert ctr.processes() == [row["pid"]] == [int(pid_file.read_text())]
    ctr.holds_its_quota(*ctr.executed())
    ctr.kill()
    wait_until(lambda: not allocated(ctr.stage))


@pytest.mark.parametrize("pid", ["CONTAINER", "NODE"])
def test_a_pod_has_the_processes_that_it_asks_for(
    own: Stack, node: CriNode, bind: str, pid: str
) -> None:
    """Its container's process is bound, executed in and ended, whoever else it shares pids with."""
    with node.pod({"memory": "4GiB"}, pid=pid) as pod:
        train = pod.run("train")
        assert_bound(own, bind)
        assert_slice(train.probe(*probing(4 * GIB)).said, 4 * GIB)
        [row] = Client(own.socket).tenants()
        assert train.pid() == row["pid"]
        assert train.execute(BUSYBOX, "sh", "-c", "exit 23").status == 23
        os.kill(train.pid(), signal.SIGKILL)
        assert train.wait() == 128 + signal.SIGKILL
        wait_until(lambda: not allocated(own))
        assert pod.run("next", BUSYBOX, "sh", "-c", "exit 23").wait() == 23
