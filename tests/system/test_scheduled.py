# SPDX-License-Identifier: Apache-2.0
"""Real containers with what the scheduler of Kubernetes allocated, by the mounts of a kubelet."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import yaml

from gpushare.client import Client
from gpushare.protocol.kubernetes import (
    ALLOCATION_MOUNT,
    CLAIM_DEVICES_MAX,
    CLAIM_PODS_MAX,
    ClaimDevice,
)
from tests.admission import mutate
from tests.admission.rendered import translation
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .waiting import wait_until

GIB = 1 << 30
CLAIM = "7d0c2b1e-0000-4000-8000-000000000001"
UID = "0a1b"
POD = {
    "io.kubernetes.cri.container-name": "train",
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-id": "5a4d",
    "io.kubernetes.cri.sandbox-name": "job-1",
    "io.kubernetes.cri.sandbox-namespace": "team",
    "io.kubernetes.cri.sandbox-uid": UID,
}


def configured(stack: Stack, **more: Any) -> Stack:
    """Start the daemon of `stack` with `more` in its configuration."""
    document = yaml.safe_load(stack.config.read_text())
    stack.config.write_text(yaml.safe_dump({**document, **more}))
    stack.start_daemon()
    return stack


@pytest.fixture(scope="module")
def plugin() -> Iterator[Stack]:
    with Stack(cards=2) as made:
        yield configured(made, kubernetes={"mode": "plugin"})


@pytest.fixture
def dra() -> Iterator[Stack]:
    """A node in dra mode, of which a test may end the daemon."""
    with Stack(cards=2) as made:
        yield configured(made, kubernetes={"mode": "dra", "cdi_dir": f"{made.root}/cdi"})


def bundle(stack: Stack, folder: str, at: str = ALLOCATION_MOUNT, **annotations: str) -> Bundle:
    """Return a pod's container in which a kubelet has mounted `folder`."""
    asked = {f"gpushare.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    made = Bundle(stack, annotations={**POD, **asked})
    mount = {"destination": at, "type": "bind", "source": folder, "options": ["rbind", "ro"]}
    made.config["mounts"].append(mount)
    made.save()
    return made


def test_a_pod_of_another_vendor_has_exactly_what_its_limits_say(plugin: Stack) -> None:
    """The scheduler counts 5 GiB, and the record of the admission policy requests 4097 MiB."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4097", "nvidia.com/gpucores": "30"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "job-1"},
        "spec": {"containers": [{"name": "train", "resources": {"limits": limits}}]},
    }
    admitted = mutate(translation("plugin"), pod)
    [container] = admitted["spec"]["containers"]
    size = int(container["resources"]["limits"]["gpushare.io/memory-gib"]) * GIB
    client = Client(plugin.socket)
    made = bundle(plugin, client.allocation(client.cards()[0]["uuid"], size))
    made.config["annotations"] |= admitted["metadata"]["annotations"]
    made.save()
    with made.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == 4097 << 20
        [row] = [row for row in client.tenants() if row["id"] == made.id]
        assert row["cards"][0]["cores"] == 30


def test_a_container_of_the_device_plugin_has_its_part_of_the_card(plugin: Stack) -> None:
    """It has no marker but the mount, which the launcher recognizes."""
    client = Client(plugin.socket)
    card = client.cards()[0]["uuid"]
    made = bundle(plugin, client.allocation(card, 8 * GIB))
    with made.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == 8 * GIB
        [row] = [row for row in client.tenants() if row["id"] == made.id]
        assert (row["name"], row["cards"][0]["uuid"]) == ("team/job-1/train", card)
        assert ALLOCATION_MOUNT not in [mount["destination"] for mount in made.read()["mounts"]]
    made.remove()
    wait_until(lambda: client.cards()[0]["allocated_bytes"] == 0)


def test_it_is_on_the_card_that_the_scheduler_chose(plugin: Stack) -> None:
    client = Client(plugin.socket)
    for card in client.cards():
        made = bundle(plugin, client.allocation(card["uuid"], 8 * GIB))
        with made.run() as tenant:
            tenant.start()
            [row] = [row for row in client.tenants() if row["id"] == made.id]
            assert [part["uuid"] for part in row["cards"]] == [card["uuid"]]
        made.remove()


def test_a_pod_of_another_mode_is_refused_with_the_fix(plugin: Stack) -> None:
    made = Bundle(plugin, annotations={**POD, "gpushare.io/memory": "4GiB"})
    with made.run() as tenant:
        assert tenant.wait() != 0
    assert "select nodes with the label gpushare.io/mode=annotations." in tenant.errors
    made.remove()


def device(card: str, gib: int, cores: int = 0) -> ClaimDevice:
    return {"request": "gpu", "card": card, "memory_bytes": gib * GIB, "cores": cores, "share": ""}


def prepared(client: Client, *devices: ClaimDevice, pods: Sequence[str] = (UID,)) -> str:
    """Prepare a claim as the kubelet has gpushare-node do; return the folder."""
    return client.prepare_claim(CLAIM, namespace="team", name="gpus", pods=pods, devices=devices)[
        "folder"
    ]


def mounted(stack: Stack) -> str:
    """Return where the CDI spec of the claim has its folder mounted."""
    [file] = (stack.root / "cdi").iterdir()
    [found] = json.loads(file.read_text())["devices"]
    [mount] = found["containerEdits"]["mounts"]
    return str(mount["containerPath"])


def allocated(client: Client) -> list[int]:
    return [card["allocated_bytes"] // GIB for card in client.cards()]


def test_containers_share_a_claim_across_a_kill_of_the_daemon(dra: Stack) -> None:
    client = Client(dra.socket)
    card = client.cards()[0]["uuid"]
    folder = prepared(client, device(card, 20, 40))
    at = mounted(dra)
    train = bundle(dra, folder, at, memory="12GiB", cores="30")
    rest = bundle(dra, folder, at, memory="8GiB", cores="10")
    with train.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == 12 * GIB
        assert dra.daemon is not None
        os.kill(dra.daemon.process.pid, signal.SIGKILL)
        dra.daemon.stop()
        dra.start_daemon()
        [row] = client.claims()
        assert (row["claim"], row["pods"], row["tenants"]) == (CLAIM, [UID], [train.id])
        assert allocated(client) == [20, 0]
        with rest.run() as other:
            assert other.start()["code"] == 0
            assert other.ask("info")["total"] == 8 * GIB
            refused = bundle(dra, folder, at, memory="1GiB")
            with refused.run() as third:
                assert third.wait() != 0
            assert "claim team/gpus has 0 B of 20 GiB left there" in third.errors
            refused.remove()
    assert allocated(client) == [20, 0], "the claim outlives its containers"
    client.unprepare_claim(CLAIM)
    for made in (train, rest):
        made.remove()
    wait_until(lambda: allocated(client) == [0, 0])
    assert client.claims() == []
    assert list((dra.root / "cdi").iterdir()) == []


def test_a_pod_joins_a_prepared_claim(dra: Stack) -> None:
    client = Client(dra.socket)
    folder = prepared(client, device(client.cards()[0]["uuid"], 20), pods=["other"])
    made = bundle(dra, folder, mounted(dra))
    with made.run() as tenant:
        assert tenant.wait() != 0
    assert "claim team/gpus is not reserved for pod team/job-1" in tenant.errors
    wait_until(lambda: any(one["event"] == "request-refused" for one in client.history()))
    [event] = client.history("team/job-1/train")
    assert (event["event"], event["fields"]["pod"]["uid"]) == ("request-refused", UID)
    client.set_claim_pods(CLAIM, ["other", UID])
    with made.run() as tenant:
        assert tenant.start()["code"] == 0
        assert tenant.ask("info")["total"] == 20 * GIB
    made.remove()


def test_a_claim_of_two_cards(dra: Stack) -> None:
    client = Client(dra.socket)
    first, second = (card["uuid"] for card in client.cards())
    folder = prepared(client, device(first, 20), device(second, 10))
    made = bundle(dra, folder, mounted(dra))
    with made.run() as tenant:
        assert tenant.start()["code"] == 0
        [row] = client.tenants()
        assert [part["quota_bytes"] // GIB for part in row["cards"]] == [20, 10]
    made.remove()


def test_a_claim_with_the_most_pods_and_devices_fits_a_request(dra: Stack) -> None:
    client = Client(dra.socket)
    card = client.cards()[0]["uuid"]
    pods = [str(uuid.UUID(int=number)) for number in range(CLAIM_PODS_MAX)]
    prepared(client, *[device(card, 1)] * CLAIM_DEVICES_MAX, pods=pods)
    [row] = client.claims()
    assert (row["pods"], len(row["devices"])) == (pods, CLAIM_DEVICES_MAX)
