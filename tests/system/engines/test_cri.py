# SPDX-License-Identifier: Apache-2.0
"""Pods, as a kubelet has containerd make them: handler, annotations, devices, their ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.system.waiting import wait_until

from .cri import CriError
from .node import CriNode
from .pod import PodContainer
from .slices import GIB, NO_DRIVER, allocated, assert_slice, probing


def holds(container: PodContainer, memory: int) -> None:
    """Assert that the container's programs see a card of `memory` bytes, and get no more."""
    assert_slice(container.probe(*probing(memory)).said, memory)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("parent", "handler"),
    [
        ("kubepods/burstable/pod{uid}", "gpushare"),
        # A kubelet that believes in systemd and a containerd that does not: runc takes the three
        # words for one name. The handler is the default one.
        ("kubepods-burstable-pod{uid}.slice", ""),
    ],
)
def test_a_pod_of_one_container_gets_the_request_of_its_annotation(
    node: CriNode, parent: str, handler: str
) -> None:
    with node.pod({"memory": "4GiB"}, parent=parent, handler=handler) as pod:
        assert allocated(node.stack) == {}  # the sandbox bears the annotation too
        container = pod.run("train")
        holds(container, 4 * GIB)
        assert allocated(node.stack) == {container.full_name: 4 * GIB}
        groups = Path(f"/proc/{container.pid()}/cgroup").read_text()
        assert parent.format(uid=pod.uid) in groups
        container.remove()
        wait_until(lambda: allocated(node.stack) == {})


@pytest.mark.gate
def test_each_container_of_a_pod_has_its_own_annotations(node: CriNode) -> None:
    annotations = {"container.train.memory": "4GiB", "container.serve.memory": "8GiB"}
    with node.pod(annotations) as pod:
        train, serve, logs = (pod.run(name) for name in ("train", "serve", "logs"))
        holds(train, 4 * GIB)
        holds(serve, 8 * GIB)
        assert logs.probe().status == NO_DRIVER
        assert allocated(node.stack) == {train.full_name: 4 * GIB, serve.full_name: 8 * GIB}


def test_a_refusal_gives_the_kubelet_the_reason(node: CriNode) -> None:
    with node.pod({"container.train.memory": "2000GiB"}) as pod:
        container = pod.create("train")
        with pytest.raises(CriError, match="gpushare: no card has room for 2000 GiB"):
            container.start()
        assert container.state() == "CONTAINER_EXITED"
        assert allocated(node.stack) == {}
        events = node.stack.client.history(container.full_name, 0.0)
        assert [event["event"] for event in events] == ["request-refused"]


def test_a_container_whose_init_or_shim_is_killed_is_released(node: CriNode) -> None:
    with node.pod({"memory": "4GiB"}) as pod:
        container = pod.run("train")
        os.kill(container.pid(), signal.SIGKILL)
        assert container.wait() == 128 + signal.SIGKILL
        wait_until(lambda: allocated(node.stack) == {})
        container.remove()
        container = pod.run("train")
        first = container.pid()
        os.kill(shim_of(first), signal.SIGKILL)
        # containerd sees it go, and has the runtime delete what is left.
        wait_until(lambda: not Path(f"/proc/{first}").exists())
        wait_until(lambda: allocated(node.stack) == {})
        container.wait()  # until then the pod cannot be removed


def shim_of(pid: int) -> int:
    """Return the parent of a container's first process."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
