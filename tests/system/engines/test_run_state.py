# SPDX-License-Identifier: Apache-2.0
"""Containers that are paused and stopped beneath their engine, which has a mind of its own."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from gpushare.client import Client, RequestRefused
from gpushare.verify import Docker
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.distribution import Cgroups, Distribution
from tests.system.waiting import wait_until

from .docker_client import FOUR_GIB, GIB, DockerClient, holds
from .test_layouts import may_raise_limits

pytestmark = pytest.mark.usefixtures("released")


@pytest.fixture
def client(stage: Stack, docker: Docker) -> DockerClient:
    assert docker.env
    return DockerClient(stage)


def often(stack: Stack) -> None:
    """Have gpushared look at the tenants often, so that a test need not wait."""
    said: dict[str, Any] = yaml.safe_load(stack.config.read_text())
    stack.config.write_text(yaml.safe_dump({**said, "timing": {"reconcile_interval_seconds": 0.2}}))


def test_a_container_goes_on_where_it_was(client: DockerClient) -> None:
    asking = Client(client.stage.socket)
    with client.background("paused", *FOUR_GIB) as name, client.exec(name) as tenant:
        assert tenant.start()["code"] == 0
        asking.pause(name, "card 0 is looked at")
        tenant.tell("info")
        assert client.state(name)["Status"] == "running"  # the engine was not asked
        assert [held["by"] for held in asking.tenant(name)["interventions"]] == ["operator"]
        asking.resume(name)
        assert tenant.answer("info")["total"] == 4 * GIB


def is_paused(asking: Client, name: str) -> bool:
    """Pause a container whose engine has returned, and whose program may be about to begin."""
    try:
        asking.pause(name)
    except RequestRefused:
        return False
    return True


@pytest.mark.parametrize("words", [("stop", "--time", "1"), ("kill",), ("rm", "--force")])
def test_an_engine_ends_a_paused_container_as_any_other(
    client: DockerClient, words: tuple[str, ...]
) -> None:
    with client.background("ended", *FOUR_GIB) as name:
        wait_until(lambda: is_paused(Client(client.stage.socket), name))
        client(*words, name)
        wait_until(lambda: client.quotas() == {})


def test_a_container_paused_by_docker_stays_paused(client: DockerClient) -> None:
    asking = Client(client.stage.socket)
    with client.background("dockers", *FOUR_GIB) as name, client.exec(name) as tenant:
        assert tenant.start()["code"] == 0
        client("pause", name)
        asking.pause(name)
        asking.resume(name)
        tenant.tell("info")
        assert client.state(name)["Status"] == "paused"
        client("unpause", name)
        assert tenant.answer("info")["total"] == 4 * GIB


def test_a_stopped_container_is_started_again_where_its_policy_says_so(
    client: DockerClient,
) -> None:
    asking = Client(client.stage.socket)
    with client.background("again", "--restart", "always", *FOUR_GIB) as name:
        before = client.state(name)
        asking.stop(name, "KILL", 0)
        wait_until(lambda: client.state(name)["RestartCount"] > before["RestartCount"])
        wait_until(lambda: client.state(name)["Status"] == "running")
        assert asking.tenant(name)["interventions"] == []
        with client.exec(name) as tenant:
            holds(tenant)


def test_a_stopped_container_gets_its_signal_first(client: DockerClient) -> None:
    asking = Client(client.stage.socket)
    script = "trap 'exit 7' TERM; echo ready; while :; do busybox sleep 0.02; done"
    busybox = ("--volume", "/usr/bin/busybox:/usr/bin/busybox:ro", "--entrypoint", "busybox")
    words = ("run", "--detach", "--name", "told", "--network", "none", *busybox, *FOUR_GIB)
    with client.nothing_kept():
        client(*words, "gpushare-probe", "sh", "-c", script)
        try:
            wait_until(lambda: client("logs", "told") == "ready")
            asking.pause("told")
            asking.stop("told", "TERM", 600)
            assert client("wait", "told") == "7"
        finally:
            client.call("rm", "--force", "told")


@pytest.mark.parametrize(
    ("runtime", "cgroups"), [("runc", "v1"), ("runc", "v2"), ("crun", "v1"), ("crun", "v2")]
)
def test_each_runtime_and_layout(
    distribution: Distribution, runtime: str, cgroups: Cgroups
) -> None:
    with Stack(distribution=distribution, cgroups=cgroups, runtime=runtime) as stack:
        if (runtime, cgroups) == ("crun", "v2") and not may_raise_limits():
            said = subprocess.run(stack.argv("crun", "--version"), check=True, capture_output=True)
            if b"crun version 1.8" in said.stdout:
                pytest.skip("crun 1.8 needs CAP_SYS_RESOURCE to load a device filter of cgroup v2")
        often(stack)
        stack.start_daemon()
        client = Client(stack.socket)
        bundle = Bundle(stack, quota={"memory": "4GiB"})
        with bundle.run() as tenant:
            assert tenant.start()["code"] == 0
            client.pause(bundle.id)
            tenant.tell("info")
            assert '"paused"' in bundle.call("state").stdout
            # Whoever resumes it beneath us is overruled at the next look.
            assert bundle.call("resume").returncode == 0
            wait_until(lambda: '"paused"' in bundle.call("state").stdout)
            client.resume(bundle.id)
            assert tenant.answer("info")["total"] == 4 * GIB
            client.pause(bundle.id)
            client.stop(bundle.id, "KILL", 0)
            assert tenant.wait() != 0
        wait_until(lambda: not client.tenants())
