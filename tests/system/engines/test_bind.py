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

from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.system.waiting import wait_until

from .docker_client import FOUR_GIB, GIB, DockerClient, holds
from .node import BUSYBOX, CriNode
from .slices import allocated, assert_slice, probing


@pytest.fixture(scope="module", params=["launcher", "hook"])
def bind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def own(bind: str) -> Iterator[Stack]:
    with Stack(distribution=HOST) as stack:
        stack.configure(bind=bind)
        stack.start_daemon()
        yield stack


@pytest.fixture(autouse=True)
def released(own: Stack) -> Iterator[None]:
    """After the test: what it reserved is given back."""
    yield
    wait_until(lambda: not own.client.tenants())


@pytest.fixture(scope="module")
def client(own: Stack) -> DockerClient:
    own.start_containerd()
    own.start_docker("--default-runtime=gpushare").prepare(own.installation.probe)
    return DockerClient(own)


@pytest.fixture(scope="module")
def node(own: Stack) -> Iterator[CriNode]:
    with CriNode(own) as made:
        yield made


def assert_bound(own: Stack, bind: str) -> None:
    """The one container is bound, and its spec has a hook that does it, or has none."""
    [row] = own.client.tenants()
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
        [row] = own.client.tenants()
        assert [one["by"] for one in row["interventions"]] == ["engine"]
        client("unpause", name)
        [row] = own.client.tenants()
        assert row["interventions"] == []
        own.end_daemon()
        client("pause", name)
        own.start_daemon()
        assert f"{name} is paused" in own.gpushare("ps").stdout
        client("unpause", name)
        wait_until(lambda: own.client.tenants()[0]["interventions"] == [])


@pytest.mark.parametrize("pid", ["CONTAINER", "NODE"])
def test_a_pod_has_the_processes_that_it_asks_for(
    own: Stack, node: CriNode, bind: str, pid: str
) -> None:
    """Its container's process is bound, executed in and ended, whoever else it shares pids with."""
    with node.pod({"memory": "4GiB"}, pid=pid) as pod:
        train = pod.run("train")
        assert_bound(own, bind)
        assert_slice(train.probe(*probing(4 * GIB)).said, 4 * GIB)
        [row] = own.client.tenants()
        assert train.pid() == row["pid"]
        assert train.execute(BUSYBOX, "sh", "-c", "exit 23").status == 23
        os.kill(train.pid(), signal.SIGKILL)
        assert train.wait() == 128 + signal.SIGKILL
        wait_until(lambda: not allocated(own))
        assert pod.run("next", BUSYBOX, "sh", "-c", "exit 23").wait() == 23
