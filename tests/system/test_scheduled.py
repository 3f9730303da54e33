# SPDX-License-Identifier: Apache-2.0
"""Real containers with what the scheduler of Kubernetes allocated, by the mounts of a kubelet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest

from gpushare.client import Client
from gpushare.protocol.kubernetes import (
    ALLOCATION_MOUNT,
    ClaimDevice,
)
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


@pytest.fixture
def dra() -> Iterator[Stack]:
    """A node in dra mode, of which a test may end the daemon."""
    with Stack(cards=2) as made:
        made.configure(kubernetes={"mode": "dra", "cdi_dir": f"{made.root}/cdi"})
        made.start_daemon()
        yield made


def bundle(stack: Stack, folder: str, at: str = ALLOCATION_MOUNT, **annotations: str) -> Bundle:
    """Return a pod's container in which a kubelet has mounted `folder`."""
    asked = {f"gpushare.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    made = Bundle(stack, annotations={**POD, **asked})
    mount = {"destination": at, "type": "bind", "source": folder, "options": ["rbind", "ro"]}
    made.config["mounts"].append(mount)
    made.save()
    return made


def device(card: str, gib: int, cores: int = 0) -> ClaimDevice:
    return {"request": "gpu", "card": card, "memory_bytes": gib * GIB, "cores": cores, "share": ""}


def prepared(stack: Stack, *devices: ClaimDevice, pods: Sequence[str] = (UID,)) -> tuple[str, str]:
    """Prepare a claim as the kubelet has gpushare-node do; return its folder, and where it goes."""
    stack.client.prepare_claim(CLAIM, namespace="team", name="gpus", pods=pods, devices=devices)
    [file] = (stack.root / "cdi").iterdir()
    [found] = json.loads(file.read_text())["devices"]
    [mount] = found["containerEdits"]["mounts"]
    return str(mount["hostPath"]), str(mount["containerPath"])


def allocated(client: Client) -> list[int]:
    return [card["allocated_bytes"] // GIB for card in client.cards()]


@pytest.mark.gate
def test_containers_share_a_claim_across_a_kill_of_the_daemon(dra: Stack) -> None:
    client = dra.client
    card = client.cards()[0]["uuid"]
    folder, at = prepared(dra, device(card, 20, 40))
    train = bundle(dra, folder, at, memory="12GiB", cores="30")
    rest = bundle(dra, folder, at, memory="8GiB", cores="10")
    with train.started() as tenant:
        assert tenant.ask("info")["total"] == 12 * GIB
        dra.end_daemon()
        dra.start_daemon()
        [row] = client.claims()
        assert (row["claim"], row["pods"], row["tenants"]) == (CLAIM, [UID], [train.id])
        assert allocated(client) == [20, 0]
        with rest.started() as other:
            assert other.ask("info")["total"] == 8 * GIB
            third = bundle(dra, folder, at, memory="1GiB").refusal()
            assert "claim team/gpus has 0 B of 20 GiB left there" in third
    assert allocated(client) == [20, 0], "the claim outlives its containers"
    client.unprepare_claim(CLAIM)
    wait_until(lambda: allocated(client) == [0, 0])
    assert client.claims() == []
    assert list((dra.root / "cdi").iterdir()) == []
