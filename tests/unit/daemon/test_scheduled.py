# SPDX-License-Identifier: Apache-2.0
"""What the device plugin allocates: a folder that the kubelet mounts, and what a pod adds to it."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.config import Config
from gpushare.daemon.placement.request import NoSuchCard
from gpushare.daemon.service import control_request
from gpushare.daemon.store.record import TenantRecord
from gpushare.protocol.kubernetes import ALLOCATION_MOUNT, NodeMode
from gpushare.protocol.operations import MalformedRequest
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import opened

CARD = fakes.card(0).uuid


class PluginNode:
    """A node with the device plugin, and the pods that the kubelet starts on it."""

    def __init__(self, folder: Path, node: FakeDaemon) -> None:
        self.folder, self.node = folder, node

    def ask(self, op: str, uid: int = 0, **fields: Any) -> Any:
        return self.node.ask(op, uid, **fields)

    def allocated(self, gib: int, card: str = CARD) -> str:
        """Return the folder of an allocation."""
        return str(self.ask("allocation", card=card, memory_bytes=gib * GIB)["folder"])

    def container(
        self,
        *folders: str,
        at: str = ALLOCATION_MOUNT,
        env: str = "A=b",
        name: str = "train",
        **asked: str,
    ) -> BundleToCreate:
        """Return a pod's container in which the kubelet has mounted `folders`."""
        keys = {f"gpushare.io/{key}": text for key, text in asked.items()}
        made = ContainerdBundles(self.folder, keys).container(name, env)
        document = made.document()
        mount = {"destination": at, "type": "bind", "options": ["rbind", "ro"]}
        document["mounts"] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            *({**mount, "source": one} for one in folders),
        ]
        (made.folder / "config.json").write_text(json.dumps(document))
        return made

    def create(self, container: BundleToCreate) -> TenantRecord:
        key = container.create(self.node)["key"]
        return self.node.ledger.entries[key]

    def schedulable(self, index: int = 0) -> tuple[int, int]:
        row = self.ask("cards")[index]
        return row["schedulable_bytes"] // GIB, row["schedulable_cores"]


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[PluginNode]:
    driver = FakeDriver(fakes.card(0), fakes.card(1))
    with fakes.node(tmp_path, driver, Config(kubernetes_mode="plugin")) as made:
        yield PluginNode(tmp_path, made)


def test_the_folder_names_the_allocation_and_every_user_may_enter_it(plugin: PluginNode) -> None:
    path = Path(plugin.allocated(4))
    assert path == plugin.node.node.config.run_dir.resolve() / "allocations" / CARD / str(4 * GIB)
    for each in (path, path.parent, path.parent.parent):
        assert stat.S_IMODE(each.stat().st_mode) == 0o755
    assert plugin.allocated(4) == str(path)  # asked for again, as for another container
    assert not list(path.iterdir())


def test_a_folder_is_made_for_root_and_for_a_card_that_is_there(plugin: PluginNode) -> None:
    with pytest.raises(control_request.Forbidden):
        plugin.ask("allocation", uid=1000, card=CARD, memory_bytes=GIB)
    with pytest.raises(NoSuchCard):
        plugin.allocated(4, card="../../etc")
    with pytest.raises(MalformedRequest):
        plugin.allocated(0)
    with pytest.raises(QuotaError, match=r"more than the 140GiB of card 0\. Allocate less"):
        plugin.allocated(141)
    plugin.node.node.config = replace(plugin.node.node.config, kubernetes_mode="dra")
    with pytest.raises(QuotaError, match=r"kubernetes\.mode: dra\. Set kubernetes\.mode to plu"):
        plugin.allocated(4)


def test_a_container_gets_what_the_plugin_allocated_and_not_the_mount(plugin: PluginNode) -> None:
    second = fakes.card(1).uuid
    train = plugin.container(plugin.allocated(8, second))
    record = plugin.create(train)
    assert [(one.uuid, one.quota_bytes) for one in record.allocations] == [(second, 8 * GIB)]
    assert record.quota["memory"] == {"value": "8GiB", "source": "device plugin"}
    destinations = [mount["destination"] for mount in train.document()["mounts"]]
    assert ALLOCATION_MOUNT not in destinations
    assert "/proc" in destinations


@pytest.mark.parametrize(
    ("asked", "gib"),
    [
        ({"memory": "100GiB", "memory-limit": "120GiB"}, 8),
        ({"container.train.memory": "2GiB", "memory": "100GiB", "devices": "1", "count": "2"}, 2),
    ],
)
def test_annotations_of_the_pod_never_raise_memory(
    plugin: PluginNode, asked: dict[str, str], gib: int
) -> None:
    train = plugin.container(plugin.allocated(8), env="GPUSHARE_MEMORY=50GiB", **asked)
    [allocation] = plugin.create(train).allocations
    assert (allocation.quota_bytes, allocation.burst_limit_bytes) == (gib * GIB, gib * GIB)
    assert allocation.uuid == CARD


def test_annotations_of_the_pod_set_the_compute_that_nobody_allocated(plugin: PluginNode) -> None:
    asked = {"cores": "30", "policy": "burst-share", "priority": "2", "class": "online"}
    record = plugin.create(plugin.container(plugin.allocated(8), **asked))
    assert (record.allocations[0].cores, record.policy) == (30, "burst-share")
    assert (record.priority, record.class_) == (2, "online")


def test_a_part_of_a_card_never_becomes_the_whole_card(plugin: PluginNode) -> None:
    record = plugin.create(plugin.container(plugin.allocated(8), cores="100"))
    assert record.shared
    assert any("cores" in note and "would exceed" in note for note in record.notes)


@pytest.mark.parametrize("mode", ["plugin", "dra"])
@pytest.mark.parametrize("key", ["memory", "container.train.memory", "memory-percent", "count"])
def test_a_pod_with_annotations_alone_is_refused_with_the_fix(
    plugin: PluginNode, mode: NodeMode, key: str
) -> None:
    value = {"memory-percent": "10", "count": "1"}.get(key, "4GiB")
    plugin.node.node.config = replace(plugin.node.node.config, kubernetes_mode=mode)
    train = plugin.container(**{key: value})
    before = train.text()
    with pytest.raises(QuotaError) as refused:
        plugin.create(train)
    assert f"annotation gpushare.io/{key}={value}: cannot be used" in str(refused.value)
    assert f"(kubernetes.mode: {mode})" in str(refused.value)
    assert "select nodes with the label gpushare.io/mode=annotations." in str(refused.value)
    assert train.text() == before


@pytest.mark.parametrize("mode", ["annotations", "dra"])
def test_an_allocation_on_a_node_of_another_mode_is_refused(
    plugin: PluginNode, mode: NodeMode
) -> None:
    train = plugin.container(plugin.allocated(4))
    plugin.node.node.config = replace(plugin.node.node.config, kubernetes_mode=mode)
    with pytest.raises(QuotaError, match=r"select nodes .* gpushare.io/mode=plugin\.") as refused:
        plugin.create(train)
    assert "device plugin" in str(refused.value)


@pytest.mark.parametrize(
    ("forged", "at"),
    [
        ("/tmp/allocations/GPU-0000/1073741824", ALLOCATION_MOUNT),
        ("{run}/allocations/GPU-0000/1073741824/x", ALLOCATION_MOUNT),
        ("{run}/allocations/GPU-0000", ALLOCATION_MOUNT),
        ("{run}/allocations/GPU-0000/4GiB", ALLOCATION_MOUNT),
        ("{run}/allocations/GPU-0000/-1", ALLOCATION_MOUNT),
        ("{run}/allocations/GPU-0000/01", ALLOCATION_MOUNT),
        ("{run}/allocations/../GPU-0000/1", ALLOCATION_MOUNT),
        ("{run}/tenants/GPU-0000/1073741824", ALLOCATION_MOUNT),
        ("{run}/allocations/GPU-0000/1073741824", "/data"),
    ],
)
def test_a_mount_that_is_nearly_an_allocation_is_none(
    plugin: PluginNode, forged: str, at: str
) -> None:
    source = forged.format(run=plugin.node.node.config.run_dir.resolve())
    train = plugin.container(source, at=at)
    assert plugin.create(train).state == "none"
    assert train.document()["mounts"][-1]["source"] == source


@pytest.mark.parametrize("second", [8, 4])
def test_two_parts_of_one_card_are_refused(plugin: PluginNode, second: int) -> None:
    train = plugin.container(plugin.allocated(4), plugin.allocated(second))
    with pytest.raises(QuotaError, match="allocated 2 different parts of cards"):
        plugin.create(train)


def test_the_scheduler_has_the_card_less_what_others_hold(plugin: PluginNode) -> None:
    assert plugin.schedulable() == (140, 100)
    plugin.create(plugin.container(plugin.allocated(8), name="pod"))
    assert plugin.schedulable() == (140, 100)  # the scheduler knows of its own
    opened(plugin.node, memory="10GiB", cores="30", devices="0")
    assert plugin.schedulable() == (130, 70)
    opened(plugin.node, count="1", devices="1")
    assert plugin.schedulable(1) == (0, 0)
