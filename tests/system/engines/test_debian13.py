# SPDX-License-Identifier: Apache-2.0
"""The engines of Debian 13, one start each: docker 26, podman 5, containerd 1.7."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare.client import Client
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.distribution import DEBIAN13
from tests.system.waiting import wait_until

from .docker_client import FOUR_GIB, DockerClient, holds
from .node import CriNode
from .podman import Podman
from .slices import GIB, assert_slice, parse, probing

pytestmark = pytest.mark.needs("debian13")


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    with Stack(distribution=DEBIAN13) as made:
        made.start_daemon()
        made.start_containerd()
        yield made


@pytest.fixture(autouse=True)
def released(own: Stack) -> Iterator[None]:
    yield
    wait_until(lambda: not Client(own.socket).tenants())


def test_docker_by_a_variable_and_by_an_annotation(own: Stack) -> None:
    own.start_docker("--default-runtime=gpushare").prepare(own.installation.probe)
    client = DockerClient(own)
    for asks in (FOUR_GIB, ("--annotation", "gpushare.io/memory=4GiB")):
        with client.run("asks", *asks) as tenant:
            holds(tenant)


def test_podman(own: Stack) -> None:
    probe = (PROGRAM, *probing(4 * GIB))
    done = Podman(own).run("--rm", "--annotation=gpushare.io/memory=4GiB", command=probe)
    assert done.returncode == 0, done.stderr
    assert_slice(parse(done.stdout), 4 * GIB)


def test_a_pod(own: Stack) -> None:
    with CriNode(own) as node, node.pod({"memory": "4GiB"}) as pod:
        assert_slice(pod.run("train").probe(*probing(4 * GIB)).said, 4 * GIB)
