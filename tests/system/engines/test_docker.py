# SPDX-License-Identifier: Apache-2.0
"""Docker, as people start containers with it: the quota is seen, held, and given back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.system.waiting import wait_until

from .docker_client import FOUR_GIB, GIB, IMAGE, PLAIN, DockerClient, holds


@pytest.mark.gate
def test_a_container_gets_its_request(docker: DockerClient) -> None:
    with docker.run("named", "--runtime=gpushare", *FOUR_GIB) as tenant:
        holds(tenant)
        wait_until(lambda: docker.quotas() == {"named": 4 * GIB})
    with docker.run("plain") as tenant:
        assert tenant.wait() == 3, tenant.errors  # the probe ran and found no driver


@pytest.mark.parametrize(
    "flags",
    [
        ("--user", "1000:1000", "--read-only", "--security-opt", "no-new-privileges"),
        ("--cap-drop", "ALL", "--init", "--memory", "64m", "--cpus", "0.5", "--pids-limit", "64"),
        ("--pid", "host", "--ipc", "host", "--uts", "host"),
        ("--tmpfs", "/opt", "--tmpfs", "/usr/lib", "--workdir", "/tmp", "--hostname", "tenant"),
    ],
    ids=" ".join,
)
def test_with_flags_of_all_kinds(docker: DockerClient, flags: tuple[str, ...]) -> None:
    with docker.run("flags", *FOUR_GIB, *flags) as tenant:
        holds(tenant)


@pytest.mark.gate
def test_a_process_executed_later_shares_the_quota(docker: DockerClient) -> None:
    with docker.background("shared", *FOUR_GIB) as name, docker.exec(name) as first:
        assert first.start()["code"] == 0
        assert first.ask(f"alloc {2 * GIB}")["code"] == 0
        with docker.exec(name, "--user", "1000", "--env", "GPUSHARE_MEMORY=8GiB") as second:
            assert second.start()["code"] == 0
            assert second.ask("info")["total"] == 4 * GIB
            assert second.ask(f"alloc {2 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.gate
def test_a_refusal_is_one_clear_line(docker: DockerClient) -> None:
    done = docker.call("run", "--rm", *PLAIN, "-e", "GPUSHARE_MEMORY=2000GiB", IMAGE)
    assert done.returncode in (125, 126, 127)
    lines = [line for line in done.stderr.splitlines() if "gpushare: " in line]
    assert len(lines) == 1
    assert lines[0].count("gpushare: ") == 1
    assert "no card has room for 2000 GiB: card 0 has" in lines[0]
    assert docker("ps", "--all", "--quiet") == ""


# --- while gpushared is away or restarts ---


@pytest.fixture(scope="module")
def restarted() -> Iterator[Stack]:
    """A stage whose gpushared may be stopped."""
    with Stack(distribution=HOST) as own:
        own.start_containerd()
        own.start_docker("--default-runtime=gpushare").prepare(own.installation.probe)
        yield own


@pytest.fixture
def client(restarted: Stack) -> Iterator[DockerClient]:
    daemon = restarted.start_daemon()
    yield DockerClient(restarted)
    wait_until(lambda: not Client(restarted.socket).tenants())
    (restarted.daemon or daemon).stop()


def stop(stack: Stack) -> None:
    assert stack.daemon is not None
    stack.daemon.stop()


@pytest.mark.gate
def test_with_gpushared_dead_only_gpu_requests_are_refused(client: DockerClient) -> None:
    stop(client.stage)
    asking = client.call("run", "--rm", *PLAIN, *FOUR_GIB, IMAGE)
    assert asking.returncode != 0
    assert asking.stderr.count("gpushare: ") == 1
    assert "this container requests a GPU" in asking.stderr
    plain = client.call("run", "--rm", *PLAIN, IMAGE)
    assert plain.returncode == 3, plain.stderr  # the probe ran and found no driver
    client.stage.start_daemon()
    with client.run("asking", *FOUR_GIB) as tenant:
        holds(tenant)


@pytest.mark.gate
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
        before = client.state(name)
        os.kill(before["Pid"], signal.SIGKILL)
        wait_until(lambda: client.state(name)["RestartCount"] > before["RestartCount"])
        wait_until(lambda: client.state(name)["Status"] == "running")
        with client.exec(name) as tenant:
            holds(tenant)
