# SPDX-License-Identifier: Apache-2.0
"""Real containers with what the scheduler of Kubernetes allocated, by the mounts of a kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpushare.client import Client
from gpushare.protocol.kubernetes import ALLOCATION_MOUNT
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .waiting import wait_until

GIB = 1 << 30
POD = {
    "io.kubernetes.cri.container-name": "train",
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-id": "5a4d",
    "io.kubernetes.cri.sandbox-name": "job-1",
    "io.kubernetes.cri.sandbox-namespace": "team",
    "io.kubernetes.cri.sandbox-uid": "0a1b",
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


def bundle(stack: Stack, folder: str, at: str = ALLOCATION_MOUNT, **annotations: str) -> Bundle:
    """Return a pod's container in which a kubelet has mounted `folder`."""
    asked = {f"gpushare.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    made = Bundle(stack, annotations={**POD, **asked})
    mount = {"destination": at, "type": "bind", "source": folder, "options": ["rbind", "ro"]}
    made.config["mounts"].append(mount)
    made.save()
    return made


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
