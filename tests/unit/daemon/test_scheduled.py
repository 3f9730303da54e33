# SPDX-License-Identifier: Apache-2.0
"""What the device plugin allocates: a folder that the kubelet mounts, and what a pod adds to it."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpushare.config import Config
from gpushare.daemon.placement.request import NoSuchCard
from gpushare.daemon.service.control_request import (
    ControlRequest,
    Forbidden,
    MalformedRequest,
    Peer,
)
from gpushare.daemon.service.lifecycle_operations import LIFECYCLE_OPERATIONS
from gpushare.daemon.service.node_operations import NODE_OPERATIONS
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.protocol.kubernetes import ALLOCATION_MOUNT, NodeMode
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fakes import GIB, FakeDriver
from .operations import opened

CARD = fakes.card(0).uuid


@contextmanager
def node_of(mode: NodeMode, folder: Path) -> Iterator[DaemonState]:
    driver = FakeDriver(fakes.card(0), fakes.card(1))
    with fakes.node(folder, driver, Config(kubernetes_mode=mode)) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonState]:
    with node_of("plugin", tmp_path) as made:
        yield made


def ask(node: DaemonState, op: str, uid: int = 0, **fields: Any) -> Any:
    request = ControlRequest({"op": op, **fields}, Peer(1, uid))
    rows, last = {**NODE_OPERATIONS, **LIFECYCLE_OPERATIONS}[op].run(request, node)
    return [dict(row) for row in rows] or dict(last)


def folder(node: DaemonState, gib: int, card: str = CARD) -> str:
    return cast("str", ask(node, "allocation", card=card, memory_bytes=gib * GIB)["folder"])


def mounted(container: BundleToCreate, *folders: str, at: str = ALLOCATION_MOUNT) -> BundleToCreate:
    """Have the kubelet mount `folders` in the container."""
    document = container.document()
    document["mounts"] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        *(
            {"destination": at, "source": one, "type": "bind", "options": ["rbind", "ro"]}
            for one in folders
        ),
    ]
    (container.folder / "config.json").write_text(json.dumps(document))
    return container


def container(
    folder: Path, *env: str, asked: Mapping[str, str] | None = None, name: str = "train"
) -> BundleToCreate:
    keys = {f"gpushare.io/{key}": text for key, text in (asked or {}).items()}
    return ContainerdBundles(folder, keys).container(name, *env)


def record_of(made: Mapping[str, Any], node: DaemonState) -> TenantRecord:
    return node.ledger.entries[made["key"]]


def test_the_folder_names_the_allocation_and_every_user_may_enter_it(node: DaemonState) -> None:
    path = Path(folder(node, 4))
    assert path == node.config.run_dir.resolve() / "allocations" / CARD / str(4 * GIB)
    for each in (path, path.parent, path.parent.parent):
        assert stat.S_IMODE(each.stat().st_mode) == 0o755
    assert folder(node, 4) == str(path)  # asked for again, as for another container
    assert not list(path.iterdir())


def test_a_folder_is_made_for_root_and_for_a_card_that_is_there(node: DaemonState) -> None:
    with pytest.raises(Forbidden):
        ask(node, "allocation", uid=1000, card=CARD, memory_bytes=GIB)
    with pytest.raises(NoSuchCard):
        folder(node, 4, card="../../etc")
    with pytest.raises(MalformedRequest):
        folder(node, 0)
    with pytest.raises(QuotaError, match=r"more than the 140GiB of card 0\. Allocate less"):
        folder(node, 141)


def test_a_container_gets_what_the_plugin_allocated_and_not_the_mount(
    node: DaemonState, tmp_path: Path
) -> None:
    second = fakes.card(1).uuid
    train = mounted(container(tmp_path), folder(node, 8, second))
    record = record_of(train.create(node), node)
    assert [(one.uuid, one.memory_bytes) for one in record.allocations] == [(second, 8 * GIB)]
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
    node: DaemonState, tmp_path: Path, asked: dict[str, str], gib: int
) -> None:
    train = mounted(container(tmp_path, "GPUSHARE_MEMORY=50GiB", asked=asked), folder(node, 8))
    [allocation] = record_of(train.create(node), node).allocations
    assert (allocation.memory_bytes, allocation.most_bytes) == (gib * GIB, gib * GIB)
    assert allocation.uuid == CARD


def test_annotations_of_the_pod_set_the_compute_that_nobody_allocated(
    node: DaemonState, tmp_path: Path
) -> None:
    asked = {"cores": "30", "policy": "burst-share", "priority": "2", "class": "online"}
    train = mounted(container(tmp_path, asked=asked), folder(node, 8))
    record = record_of(train.create(node), node)
    assert (record.allocations[0].cores, record.policy) == (30, "burst-share")
    assert (record.priority, record.class_) == (2, "online")


def test_a_part_of_a_card_never_becomes_the_whole_card(node: DaemonState, tmp_path: Path) -> None:
    train = mounted(container(tmp_path, asked={"cores": "100"}), folder(node, 8))
    record = record_of(train.create(node), node)
    assert record.shared
    assert any("cores" in note and "would exceed" in note for note in record.notes)


@pytest.mark.parametrize("mode", ["plugin", "dra"])
@pytest.mark.parametrize("key", ["memory", "container.train.memory", "memory-percent", "count"])
def test_a_pod_with_annotations_alone_is_refused_with_the_fix(
    tmp_path: Path, mode: NodeMode, key: str
) -> None:
    value = {"memory-percent": "10", "count": "1"}.get(key, "4GiB")
    with node_of(mode, tmp_path) as node:
        train = container(tmp_path, asked={key: value})
        before = train.text()
        with pytest.raises(QuotaError) as refused:
            train.create(node)
        assert f"annotation gpushare.io/{key}={value}: cannot be used" in str(refused.value)
        assert f"(kubernetes.mode: {mode})" in str(refused.value)
        assert "select nodes with the label gpushare.io/mode=annotations." in str(refused.value)
        assert train.text() == before


def test_an_allocation_on_a_node_of_another_mode_is_refused(tmp_path: Path) -> None:
    with node_of("plugin", tmp_path) as node:
        allocated = folder(node, 4)
        for mode in ("annotations", "dra"):
            node.config = replace(node.config, kubernetes_mode=mode)
            train = mounted(container(tmp_path / mode), allocated)
            with pytest.raises(QuotaError, match=r"select nodes .* gpushare.io/mode=plugin\.") as e:
                train.create(node)
            assert "device plugin" in str(e.value)


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
    node: DaemonState, tmp_path: Path, forged: str, at: str
) -> None:
    source = forged.format(run=node.config.run_dir.resolve())
    train = mounted(container(tmp_path), source, at=at)
    assert train.create(node)["mode"] == "none"
    assert train.document()["mounts"][-1]["source"] == source


@pytest.mark.parametrize("second", [8, 4])
def test_two_parts_of_one_card_are_refused(node: DaemonState, tmp_path: Path, second: int) -> None:
    train = mounted(container(tmp_path), folder(node, 4), folder(node, second))
    with pytest.raises(QuotaError, match="allocated 2 different parts of cards"):
        train.create(node)


def row(node: DaemonState, index: int = 0) -> dict[str, Any]:
    return cast("list[dict[str, Any]]", ask(node, "cards"))[index]


def test_the_scheduler_has_the_card_less_what_others_hold(
    node: DaemonState, tmp_path: Path
) -> None:
    assert (row(node)["schedulable_bytes"], row(node)["schedulable_cores"]) == (140 * GIB, 100)
    mounted(container(tmp_path, name="pod"), folder(node, 8)).create(node)
    assert row(node)["schedulable_bytes"] == 140 * GIB  # the scheduler knows of its own
    opened(node, memory="10GiB", cores="30", devices="0")
    assert (row(node)["schedulable_bytes"], row(node)["schedulable_cores"]) == (130 * GIB, 70)
    opened(node, count="1", devices="1")
    assert (row(node, 1)["schedulable_bytes"], row(node, 1)["schedulable_cores"]) == (0, 0)
