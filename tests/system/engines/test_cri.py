# SPDX-License-Identifier: Apache-2.0
"""Pods, as a kubelet has containerd make them: handler, annotations, devices, their ends."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import pytest

from gpushare.client import Client
from gpushare.verify.image import PROGRAM
from tests.system.waiting import wait_until

from .cri import CriError
from .node import CriNode
from .pod import PodContainer
from .slices import GIB, NO_DRIVER, OUT_OF_MEMORY, allocated, assert_slice, probing


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


def test_an_annotation_without_a_container_applies_to_one(node: CriNode) -> None:
    """The first container has it; later ones are refused with both names, and not once it ended."""
    with node.pod({"memory": "100GiB"}) as pod:
        assert pod.run("fetch", PROGRAM, "context", f"alloc {99 * GIB}").wait() == 0
        train = pod.run("train")
        holds(train, 100 * GIB)
        proxy = pod.create("proxy")
        with pytest.raises(CriError, match=r"gpushare\.io/container\.proxy\.memory"):
            proxy.start()


def test_a_refusal_gives_the_kubelet_the_reason(node: CriNode) -> None:
    with node.pod({"container.train.memory": "2000GiB"}) as pod:
        container = pod.create("train")
        with pytest.raises(CriError, match="gpushare: no card has room for 2000 GiB"):
            container.start()
        assert container.state() == "CONTAINER_EXITED"
        assert allocated(node.stack) == {}
        events = Client(node.stack.socket).history(container.full_name, 0.0)
        assert [event["event"] for event in events] == ["request-refused"]


def test_what_an_operator_set_outlives_a_restart_of_the_container(node: CriNode) -> None:
    """The kubelet makes another container in the same pod, under the same name."""
    with node.pod({"memory": "4GiB"}) as pod:
        first = pod.run("train")
        Client(node.stack.socket).set(first.full_name, memory="6GiB")
        holds(first, 6 * GIB)
        first.remove()
        holds(pod.run("train"), 6 * GIB)


def test_the_card_of_a_device_plugin_is_a_whole_one_or_the_share_that_is_annotated(
    node: CriNode,
) -> None:
    """A device plugin that knows nothing of us has a kubelet pass on a whole card's nodes."""
    devices = []
    for name, minor in (("nvidia0", 0), ("nvidiactl", 255)):
        path = node.root / name
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, minor))
        place = {"container_path": f"/dev/{name}", "host_path": str(path)}
        devices.append({**place, "permissions": "rw"})
    with node.pod({"container.part.memory": "4GiB"}) as pod:
        envs = [{"key": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]
        whole = pod.run("train", devices=devices, envs=envs)
        assert whole.probe("info").said[-1]["total"] > 100 * GIB
        # The card stays exclusive: a request for a share of it changes nothing.
        part = pod.create("part", devices=devices)
        with pytest.raises(CriError, match="no card has room"):
            part.start()
        part.remove()
        whole.remove()
        wait_until(lambda: allocated(node.stack) == {})
        holds(pod.run("part", devices=devices), 4 * GIB)


def test_memory_of_the_first_process_is_missing_to_executed_ones(node: CriNode) -> None:
    context = {"readonly_rootfs": True, "namespace_options": {"network": "NODE"}}
    with node.pod({"memory": "4GiB"}) as pod:
        # With a stdin that is not closed, as of a notebook's server, it stays.
        words = (PROGRAM, "context", f"alloc {2 * GIB}")
        container = pod.run("train", *words, stdin=True, linux={"security_context": context})
        wait_until(lambda: '"alloc"' in "".join(container.printed()))
        assert container.execute("/bin/busybox", "touch", "/written").status != 0
        [said] = [e for e in container.probe(f"alloc {2 * GIB}").said if e["event"] == "alloc"]
        assert said["result"] == OUT_OF_MEMORY


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


def test_the_handler_keeps_the_settings_of_the_default_one(node: CriNode) -> None:
    """Beside the launcher and the annotations it has what the administrator's drop-in says."""
    config = json.loads(node.cri.call("Status", verbose=True)["info"]["config"])
    handlers = config["containerd"]["runtimes"]
    ours, theirs = handlers["gpushare"], handlers["runc"]
    assert config["containerd"]["defaultRuntimeName"] == "gpushare"
    launcher = str(node.stack.installation.launcher)
    assert ours["options"] == {**theirs["options"], "BinaryName": launcher}
    assert ours["runtimeType"] == theirs["runtimeType"]
    with node.pod({"memory": "4GiB"}, handler="runc") as pod:  # which is none of our business
        assert pod.run("train").probe().status == NO_DRIVER
