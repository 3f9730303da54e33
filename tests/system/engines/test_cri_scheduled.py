# SPDX-License-Identifier: Apache-2.0
"""Pods that a scheduler placed, as a kubelet has containerd make them: with mounts and CDI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.client import Client
from gpushare.protocol.kubernetes import ALLOCATION_MOUNT, CLAIM_MOUNT, ClaimDevice
from tests.stack import Stack
from tests.stack.distribution import DEBIAN13, Distribution
from tests.system.waiting import wait_until

from .cri import CriError
from .node import CriNode
from .pod import PodContainer
from .slices import GIB, allocated, assert_slice, probing

CLAIM = "7d0c2b1e-0000-4000-8000-000000000001"


@contextmanager
def node_of(mode: str, distribution: Distribution) -> Iterator[CriNode]:
    """Run a node of `mode`, whose containerd reads the CDI specs of claims where it can."""
    with Stack(distribution=distribution) as stack:
        cdi = stack.root / "cdi"
        document = yaml.safe_load(stack.config.read_text())
        document["kubernetes"] = {"mode": mode, "cdi_dir": str(cdi)}
        stack.config.write_text(yaml.safe_dump(document))
        stack.start_daemon()
        more = ["enable_cdi = true", f'cdi_spec_dirs = ["{cdi}"]'] if mode == "dra" else []
        with CriNode(stack, *more) as made:
            yield made


@pytest.fixture(scope="module")
def plugin(distribution: Distribution) -> Iterator[CriNode]:
    with node_of("plugin", distribution) as made:
        yield made


@pytest.fixture(scope="module")
def dra() -> Iterator[CriNode]:
    """Debian 13's containerd: this machine's has no CDI."""
    with node_of("dra", DEBIAN13) as made:
        yield made


def mounted(client: Client, gib: int) -> dict[str, Any]:
    """Return what the device plugin's answer comes to in the container's configuration."""
    folder = client.allocation(client.cards()[0]["uuid"], gib * GIB)
    mount = {"container_path": ALLOCATION_MOUNT, "host_path": folder, "readonly": True}
    return {"mounts": [mount]}


def device_of(client: Client, gib: int, cores: int) -> ClaimDevice:
    card = client.cards()[0]["uuid"]
    memory_bytes = gib * GIB
    return ClaimDevice(request="gpu", card=card, memory_bytes=memory_bytes, cores=cores, share="")


def holds(container: PodContainer, memory: int) -> None:
    assert_slice(container.probe(*probing(memory)).said, memory)


def test_the_mount_of_the_device_plugin_is_the_allocation(plugin: CriNode) -> None:
    client = Client(plugin.stack.socket)
    with plugin.pod() as pod:
        train = pod.run("train", **mounted(client, 4))
        holds(train, 4 * GIB)
        assert allocated(plugin.stack) == {train.full_name: 4 * GIB}
        [row] = client.tenants()
        assert row["pod"] == {
            "namespace": "ai",
            "name": pod.name,
            "uid": pod.uid,
            "container": "train",
        }
        mounts = Path(f"/proc/{train.pid()}/mountinfo").read_text()
        assert ALLOCATION_MOUNT not in mounts
    wait_until(lambda: not client.tenants())


def test_the_pods_annotations_refine_the_allocation(plugin: CriNode) -> None:
    client = Client(plugin.stack.socket)
    with plugin.pod({"memory": "2GiB", "cores": "30", "count": "2"}) as pod:
        holds(pod.run("train", **mounted(client, 4)), 2 * GIB)
        [row] = client.tenants()
        assert [(card["quota_bytes"], card["cores"]) for card in row["cards"]] == [(2 * GIB, 30)]
    wait_until(lambda: not client.tenants())


def test_a_pod_without_an_allocation_is_refused_in_its_events(plugin: CriNode) -> None:
    with plugin.pod({"memory": "2GiB"}) as pod:
        container = pod.create("train")
        with pytest.raises(CriError, match=r"label gpushare\.io/mode=annotations"):
            container.start()


def test_the_folder_of_an_allocation_may_be_gone_after_a_reboot(plugin: CriNode) -> None:
    """The kubelet keeps the device plugin's answers, and /run does not survive."""
    client = Client(plugin.stack.socket)
    config = mounted(client, 4)
    Path(config["mounts"][0]["host_path"]).rmdir()
    with plugin.pod() as pod:
        holds(pod.run("train", **config), 4 * GIB)
    wait_until(lambda: not client.tenants())


def test_containers_of_pods_share_a_claim_by_cdi(dra: CriNode) -> None:
    client = Client(dra.stack.socket)
    device = device_of(client, 12, 40)
    asked = {"container.train.memory": "4GiB", "container.eval.memory": "8GiB"}
    with dra.pod(asked) as pod, dra.pod({"memory": "6GiB"}) as other:
        prepared = client.prepare_claim(
            CLAIM, namespace="ai", name="gpus", pods=[pod.uid], devices=[device]
        )
        config = {"CDI_devices": [{"name": name} for name in prepared["cdi"]]}
        holds(pod.run("train", **config), 4 * GIB)
        evaluation = pod.run("eval", **config)
        holds(evaluation, 8 * GIB)
        assert CLAIM_MOUNT not in Path(f"/proc/{evaluation.pid()}/mountinfo").read_text()
        stranger = other.create("train", **config)
        with pytest.raises(CriError, match="claim ai/gpus is not reserved for pod ai/"):
            stranger.start()
        stranger.remove()
        client.set_claim_pods(CLAIM, [pod.uid, other.uid])
        with pytest.raises(CriError, match="has 0 B of 12 GiB left there"):
            other.create("train", **config).start()
        evaluation.remove()
        wait_until(lambda: len(client.tenants()) == 1)
        holds(other.run("second", **config), 6 * GIB)
        assert client.cards()[0]["allocated_bytes"] == 12 * GIB
    client.unprepare_claim(CLAIM)
    wait_until(lambda: client.cards()[0]["allocated_bytes"] == 0)


def test_a_container_beside_the_claims_gets_no_gpu(dra: CriNode) -> None:
    client = Client(dra.stack.socket)
    devices = [device_of(client, 4, 0)]
    with dra.pod({"cores": "10"}) as pod:
        client.prepare_claim("other", namespace="ai", name="a", pods=[pod.uid], devices=devices)
        pod.run("proxy")
        assert client.tenants() == []
    client.unprepare_claim("other")
