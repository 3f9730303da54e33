# SPDX-License-Identifier: Apache-2.0
"""Docker while gpushared is away or restarts, and with user namespaces: a dockerd of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import Stack
from tests.stack.distribution import Distribution
from tests.system.waiting import wait_until

from .docker_client import FOUR_GIB, GIB, DockerClient, holds


@pytest.fixture(scope="module")
def own(distribution: Distribution) -> Iterator[Stack]:
    """A stage whose gpushared may be stopped: a test that needs it starts it."""
    with Stack(distribution=distribution) as stack:
        stack.start_containerd()
        stack.start_docker("--default-runtime=gpushare").prepare(stack.installation.probe)
        yield stack


@pytest.fixture
def client(own: Stack) -> Iterator[DockerClient]:
    own.start_daemon()
    yield DockerClient(own)
    stop(own)


def stop(stack: Stack) -> None:
    assert stack.daemon is not None
    stack.daemon.stop()


def test_with_gpushared_dead_only_gpu_requests_are_refused(client: DockerClient) -> None:
    stop(client.stage)
    asking = client.call("run", "--rm", "--network", "none", *FOUR_GIB, "gpushare-probe")
    assert asking.returncode != 0
    assert asking.stderr.count("gpushare: ") == 1
    assert "this container requests a GPU" in asking.stderr
    assert "gpushare doctor" in asking.stderr
    plain = client.call("run", "--rm", "--network", "none", "gpushare-probe")
    assert plain.returncode == 3, plain.stderr  # the probe ran and found no driver
    client.stage.start_daemon()
    with client.run("asking", *FOUR_GIB) as tenant:
        holds(tenant)


def test_a_container_runs_on_while_gpushared_restarts(client: DockerClient) -> None:
    with client.background("kept", "--restart", "always", *FOUR_GIB) as name:
        with client.exec(name) as tenant:
            assert tenant.start()["code"] == 0
            assert tenant.ask(f"alloc {2 * GIB}")["code"] == 0
            stop(client.stage)
            assert tenant.ask(f"alloc {2 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
            client.stage.start_daemon()
            wait_until(lambda: client.quotas() == {"kept": 4 * GIB})
            assert tenant.ask(f"alloc {2 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
        crash(client, name)
        with client.exec(name) as tenant:
            holds(tenant)


def test_a_container_that_docker_restarts_has_its_quota_again(client: DockerClient) -> None:
    with client.background("always", "--restart", "always", *FOUR_GIB) as name:
        for _ in range(3):
            crash(client, name)
            with client.exec(name) as tenant:
                holds(tenant)
        wait_until(lambda: client.quotas() == {"always": 4 * GIB})


def test_an_undecided_restart_is_reported_and_repeated(client: DockerClient) -> None:
    """Docker tries once (docs/how-to/docker-and-compose.md)."""
    with client.background("missed", "--restart", "always", *FOUR_GIB) as name:
        stop(client.stage)
        os.kill(client.state(name)["Pid"], signal.SIGKILL)
        wait_until(lambda: "gpushare: this container requests a GPU" in client.state(name)["Error"])
        client.stage.start_daemon()
        client("start", name)
        with client.exec(name) as tenant:
            holds(tenant)


def crash(client: DockerClient, name: str) -> None:
    """Kill a container's first process; return when docker has started it again."""
    before = client.state(name)
    os.kill(before["Pid"], signal.SIGKILL)
    wait_until(lambda: client.state(name)["RestartCount"] > before["RestartCount"])
    wait_until(lambda: client.state(name)["Status"] == "running")


def test_with_user_namespaces(distribution: Distribution) -> None:
    with Stack(distribution=distribution) as stack:
        assert stack.place is not None
        stack.place.make_nodes()
        stack.start_daemon()
        stack.start_containerd()
        stack.start_docker("--userns-remap=default").prepare(stack.installation.probe)
        client = DockerClient(stack)
        with client.background("remapped", "--runtime=gpushare", *FOUR_GIB) as name:
            mapped = Path(f"/proc/{client.state(name)['Pid']}/uid_map").read_text().split()
            assert mapped[0] == "0"
            assert mapped[1] != "0"
            for user in ("0", "1000"):
                with client.exec(name, "--user", user) as tenant:
                    holds(tenant)
