# SPDX-License-Identifier: Apache-2.0
"""create: the edited bundle, and the reservation that is made for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import bind, create, release
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.views.metrics import tenant_rows
from gpushare.errors import UserError
from gpushare.oci import edits, spec
from gpushare.quota.errors import QuotaError
from gpushare.quota.request_policy import Dialects

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon

GPU = "GPUSHARE_MEMORY=4GiB"
SANDBOX = {"io.kubernetes.cri.container-type": "sandbox"}
CARD = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
RULE = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path) as made:
        yield made


def with_a_card(annotations: dict[str, str]) -> dict[str, Any]:
    rules = [{"allow": False, "access": "rwm"}, RULE]
    return {
        "annotations": annotations,
        "linux": {"devices": [CARD], "resources": {"devices": rules}},
    }


def test_a_sandbox_is_left_as_it_is(node: FakeDaemon, tmp_path: Path) -> None:
    container = BundleToCreate(tmp_path / "b", annotations=SANDBOX)
    before = container.text()
    assert container.create(node, "weak")["mode"] == "none"
    assert container.text() == before
    assert not node.ledger.entries


def test_a_self_declared_sandbox_does_not_keep_an_unmetered_card(
    node: FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "whole", **with_a_card(SANDBOX))
    assert container.create(node)["mode"] == "exclusive"
    assert [entry.isolation for entry in node.ledger.entries.values()] == ["exclusive"]
    # The card is taken now: a second one is told so, and never started with what it brought.
    second = BundleToCreate(tmp_path / "second", **with_a_card(SANDBOX))
    with pytest.raises(QuotaError, match="is allocated exclusively to"):
        second.create(node)


def test_annotations_that_gpushare_yaml_names_become_labels_of_metrics(
    node: FakeDaemon, tmp_path: Path
) -> None:
    node.node.config = replace(node.node.config, labels=("team", "example.com/cost"))
    annotations = {"team": "red", "other": "x"}
    BundleToCreate(tmp_path / "b", GPU, annotations=annotations).create(node)
    assert [one["labels"] for one in tenant_rows(node)] == [{"team": "red"}]


def test_a_second_create_before_the_first_was_bound_takes_its_place(
    node: FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "b", GPU)
    first = container.create(node)
    once = container.text()
    second = container.create(node)
    assert first == second
    assert container.text() == once
    assert [room.allocated_bytes for room in node.accounts.capacities()] == [4 * GIB]
    assert node.mounts.made() == [first["key"]]
    pid = os.getpid()
    bind.bind(first["key"], "4f1c", pid, os.getppid(), node)
    with pytest.raises(NoRoom, match="is still running"):
        container.create(node)
    with pytest.raises(bind.ReservationNotFound, match="is already bound to process"):
        bind.bind(first["key"], "4f1c", os.getppid(), pid, node)
    assert container.text() == once
    assert processes.find_process(pid) is not None


def test_a_second_runtime_does_not_take_the_pages_from_the_first(
    node: FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "b", GPU)
    with FakeProcess() as first:
        given = container.create(node, maker=first.pid)
        pages = node.tenants.pages[given["key"]]
        with pytest.raises(NoRoom, match=f"is being created by process {first.pid}; wait"):
            container.create(node, maker=os.getpid())
        assert node.tenants.pages[given["key"]] is pages
        assert container.create(node, maker=first.pid) == given  # its own second try
        first.kill()
    # It failed, or was killed: a retry need not wait for the reservation to expire.
    assert container.create(node, maker=os.getpid()) == given
    assert [room.allocated_bytes for room in node.accounts.capacities()] == [4 * GIB]
    entry = node.ledger.entries[given["key"]]
    assert (entry.maker, entry.state) == (os.getpid(), "reserved")


@pytest.mark.parametrize("step", ["store", "edits"])
def test_a_failure_after_the_reservation_releases_it(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    container = BundleToCreate(tmp_path / "b", GPU)
    before = container.text()
    monkeypatch.setattr(
        *{"store": (spec, "store"), "edits": (edits, "apply")}[step], fakes.no_space
    )
    with pytest.raises(OSError, match="No space"):
        container.create(node)
    assert container.text() == before
    assert sorted(path.name for path in container.folder.iterdir()) == ["config.json", "rootfs"]
    assert not node.ledger.entries
    assert node.mounts.made() == []
    assert not node.tenants.pages


@pytest.fixture
def runtime() -> Iterator[FakeProcess]:
    """A process that is to make a container."""
    with FakeProcess() as started:
        yield started
        started.kill()


def test_a_reservation_of_an_ended_runtime_is_released_at_once(
    node: FakeDaemon, tmp_path: Path, runtime: FakeProcess
) -> None:
    """Nothing binds it any more: the hook runs while the runtime does."""
    key = BundleToCreate(tmp_path / "b", GPU).create(node, maker=runtime.pid)["key"]
    release.handle_process_end(key, node)
    assert node.ledger.entries[key].state == "reserved"
    runtime.kill()
    release.handle_process_end(key, node)
    assert not node.ledger.entries
    assert node.mounts.made() == []


def test_a_runtime_that_ended_before_the_answer_holds_nothing(
    node: FakeDaemon, tmp_path: Path, runtime: FakeProcess
) -> None:
    runtime.kill()
    BundleToCreate(tmp_path / "b", GPU).create(node, maker=runtime.pid)
    node.loop.settle()  # what follows an answer
    node.decide.run(lambda: None)
    assert not node.ledger.entries
    assert node.mounts.made() == []


def checkpoint(node: fakes.FakeDaemon, identity: str) -> None:
    node.ask("checkpoint", id=identity)


def restore(container: BundleToCreate, node: FakeDaemon) -> str:
    with container.bundle() as bundle:
        return str(create.create(replace(bundle, is_restore=True), node, node.room)["mode"])


def test_only_a_container_without_a_gpu_is_dumped(node: fakes.FakeDaemon, tmp_path: Path) -> None:
    BundleToCreate(tmp_path / "gpu", GPU, identity="train").create(node)
    image = BundleToCreate(tmp_path / "plain", "NVIDIA_VISIBLE_DEVICES=all", identity="plain")
    assert image.create(node)["mode"] == "none"
    for allowed in ("plain", "other"):
        checkpoint(node, allowed)
    with pytest.raises(UserError, match=r"^container train uses a GPU, and a checkpoint has no"):
        checkpoint(node, "train")


def test_a_container_with_a_gpu_is_not_restored_and_gets_nothing(
    node: fakes.FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "gpu", GPU, identity="train")
    before = container.text()
    with pytest.raises(UserError, match=r"^container train requests a GPU, and a checkpoint has"):
        restore(container, node)
    assert (container.text(), dict(node.ledger.entries)) == (before, {})
    assert restore(BundleToCreate(tmp_path / "plain", "NVIDIA_VISIBLE_DEVICES=all"), node) == "none"


HAMI = ("CUDA_DEVICE_MEMORY_LIMIT=4096m", "CUDA_DEVICE_SM_LIMIT=30")


# Of a pod's author: a vendor's annotation that names no container.
def hold(node: FakeDaemon, terms: Dialects) -> None:
    """Have `terms` hold on `node`."""
    node.node.config = replace(
        node.node.config, terms=replace(node.node.config.terms, dialects=terms)
    )


def test_a_container_of_another_system_has_its_share(tmp_path: Path, node: FakeDaemon) -> None:
    made = BundleToCreate(tmp_path / "b", *HAMI).create(node)
    entry = node.ledger.entries[made["key"]]
    [allocation] = entry.allocations
    assert (allocation.quota_bytes, allocation.cores, entry.policy) == (4 * GIB, 30, "fixed-share")
    assert entry.quota["memory"] == {"value": "4GiB", "source": "env"}


def test_one_that_is_not_taken_is_refused(tmp_path: Path, node: FakeDaemon) -> None:
    hold(node, Dialects(accept=frozenset()))
    with pytest.raises(QuotaError, match="Write GPUSHARE_MEMORY=4GiB GPUSHARE_CORES=30, or add"):
        BundleToCreate(tmp_path / "b", *HAMI).create(node)


def test_advice_uses_the_dialect_of_the_request(tmp_path: Path, node: FakeDaemon) -> None:
    engine = ContainerdBundles(tmp_path, {"gpu-fraction": "0.5"})
    assert engine.container("train").create(node)["mode"] == "shared"
    with pytest.raises(QuotaError, match=r"train of pod .* has it. Use gpu-fraction-container."):
        engine.container("proxy").create(node)


def test_a_pod_names_its_container_in_its_own_dialect(tmp_path: Path, node: FakeDaemon) -> None:
    asked = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "train"}
    engine = ContainerdBundles(tmp_path, asked)
    assert engine.container("proxy").create(node)["mode"] == "none"
    made = engine.container("train").create(node)
    assert node.ledger.entries[made["key"]].quota == {
        "memory-percent": {"value": "50", "source": "annotation"}
    }
