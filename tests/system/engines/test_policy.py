# SPDX-License-Identifier: Apache-2.0
"""The node's policy: the limits of a namespace through CRI, those of the node through docker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from gpushare.client import Client
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.distribution import Distribution
from tests.system.waiting import wait_until

from .cri import CriError
from .docker_client import DockerClient, holds
from .node import CriNode
from .pod import NAMESPACE
from .podman import BUSYBOX, Podman
from .slices import GIB, allocated, assert_slice, parse, probing

POLICY = f"""
max_per_request: {{memory: 4GiB}}
namespaces:
  {NAMESPACE}:
    defaults: {{memory: 16GiB}}
    max_per_request: {{memory: 8GiB}}
    max_per_card: {{memory: 12GiB}}
    trust: {{env: ignore}}
"""
SPOOFED = (
    *("--annotation", f"io.kubernetes.cri.sandbox-namespace={NAMESPACE}"),
    *("--annotation", "io.kubernetes.cri.sandbox-id=5a4d"),
    *("--annotation", "io.kubernetes.cri.container-name=train"),
)


@pytest.fixture(scope="module")
def own(distribution: Distribution) -> Iterator[Stack]:
    """A stage whose gpushared has a policy."""
    with Stack(distribution=distribution) as made:
        with made.config.open("a") as config:
            config.write(POLICY)
        made.start_daemon()
        yield made


@pytest.fixture(scope="module")
def node(own: Stack) -> Iterator[CriNode]:
    with CriNode(own) as made:
        yield made


@pytest.fixture
def released(own: Stack) -> Iterator[None]:
    yield
    wait_until(lambda: not Client(own.socket).tenants())


@pytest.fixture(scope="module")
def client(own: Stack) -> DockerClient:
    engine = own.start_containerd()
    engine.prepare(own.installation.probe)
    own.start_docker("--default-runtime=gpushare").prepare(own.installation.probe)
    return DockerClient(own)


@pytest.fixture(scope="module")
def podman(own: Stack) -> Podman:
    return Podman(own)


@pytest.mark.usefixtures("released")
def test_a_pod_obeys_its_namespaces_limits(node: CriNode) -> None:
    line = f"{node.stack.config}:{_line_of(node.stack, 'max_per_request: {memory: 8GiB}')}"
    with node.pod({"memory": "9GiB"}) as pod:
        container = pod.create("train")
        with pytest.raises(CriError) as refused:
            container.start()
        told = f"exceeds the maximum, 8GiB (namespaces.{NAMESPACE}.max_per_request.memory, {line})"
        assert told in str(refused.value)
    with node.pod({"memory": "8GiB"}) as pod:
        assert_slice(pod.run("train").probe(*probing(8 * GIB)).said, 8 * GIB)


@pytest.mark.usefixtures("released")
def test_the_limits_of_a_namespace_cover_all_its_pods(node: CriNode) -> None:
    with node.pod({"memory": "8GiB"}) as first, node.pod({"memory": "5GiB"}) as second:
        train = first.run("train")
        waiting = second.create("train")
        with pytest.raises(CriError, match=f"namespace {NAMESPACE} 13 GiB in all, above 12 GiB"):
            waiting.start()
        waiting.remove()
        train.remove()
        wait_until(lambda: allocated(node.stack) == {})
        second.run("train")


@pytest.mark.usefixtures("released")
def test_a_pod_that_says_no_memory_gets_the_namespace_s_default_under_its_ceiling(
    node: CriNode,
) -> None:
    with node.pod({"cores": "10"}) as pod:
        container = pod.run("train", envs=[{"key": "GPUSHARE_MEMORY", "value": "1GiB"}])
        assert allocated(node.stack) == {container.full_name: 8 * GIB}
        [row] = Client(node.stack.socket).tenants()
        assert "GPUSHARE_MEMORY was not read: trust.env is ignore" in row["notes"]
        assert row["quota"]["memory"] == "8GiB default"


@pytest.mark.usefixtures("released")
def test_set_is_above_the_ceiling(node: CriNode) -> None:
    with node.pod({"memory": "4GiB"}) as pod:
        container = pod.run("train")
        argv = [*node.stack.cli, "set", container.full_name, "--memory", "20GiB"]
        subprocess.run(argv, check=True, capture_output=True, env=node.stack.environment)
        assert_slice(container.probe(*probing(20 * GIB)).said, 20 * GIB)


@pytest.mark.usefixtures("released")
def test_an_image_s_environment_obeys_the_node_s_ceiling(client: DockerClient) -> None:
    with client.run("above", "-e", "GPUSHARE_MEMORY=5GiB") as tenant:
        assert tenant.wait() != 0
        assert "env GPUSHARE_MEMORY=5GiB: " in tenant.errors
        assert "exceeds the maximum, 4GiB (max_per_request.memory, " in tenant.errors
    with client.run("at", "-e", "GPUSHARE_MEMORY=4GiB") as tenant:
        holds(tenant)


@pytest.mark.usefixtures("released")
def test_an_annotation_makes_no_pod_of_a_user_s_container(client: DockerClient) -> None:
    """It would have the namespace's ceiling, and its environment would not be read."""
    if "--annotation" not in client("run", "--help"):  # docker 24 is the first that has it
        assert "unknown flag" in client.call("run", *SPOOFED, "gpushare-probe").stderr
        return
    with client.run("above", *SPOOFED, "-e", "GPUSHARE_MEMORY=8GiB") as tenant:
        assert tenant.wait() != 0
        assert "exceeds the maximum, 4GiB (max_per_request.memory, " in tenant.errors
    with client.run("at", *SPOOFED, "-e", "GPUSHARE_MEMORY=4GiB") as tenant:
        holds(tenant)


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("more", [(), ("--annotation", "io.container.manager=cri-o")])
def test_nor_of_a_container_of_podman(podman: Podman, more: tuple[str, ...]) -> None:
    asked = ("--annotation", "gpushare.io/memory=8GiB")
    done = podman.run("--rm", *SPOOFED, *more, *asked, command=(BUSYBOX, "true"))
    assert done.returncode != 0
    assert "exceeds the maximum, 4GiB (max_per_request.memory, " in done.stderr
    probe = (PROGRAM, *probing(4 * GIB))
    done = podman.run("--rm", *SPOOFED, *more, "-e", "GPUSHARE_MEMORY=4GiB", command=probe)
    assert_slice(parse(done.stdout), 4 * GIB)


def _line_of(stack: Stack, text: str) -> int:
    lines = stack.config.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)
