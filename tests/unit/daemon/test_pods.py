# SPDX-License-Identifier: Apache-2.0
"""Containers of one pod: which of them may take what the pod asks for without a name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.lifecycle import bind
from gpushare.daemon.operator.reset import reset_quota
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.oci.request import sandbox_annotations, trusted_annotations
from gpushare.quota.annotations import pod_of
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fake_process import FakeProcess
from .fakes import GIB

MEMORY = {"gpushare.io/memory": "4GiB"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonState]:
    with fakes.node(tmp_path) as made:
        yield made


@contextmanager
def running(made: dict[str, Any], container: BundleToCreate, node: DaemonState) -> Iterator[None]:
    """Run a process in the container: it is bound, and ends with this."""
    with FakeProcess() as process:
        bind.bind(made["key"], container.identity, process.pid, os.getpid(), node)
        try:
            yield
        finally:
            process.kill()


def allocated(node: DaemonState) -> int:
    return sum(room.allocated_bytes for room in node.capacities())


def test_a_second_container_is_refused_with_the_names_to_write(
    node: DaemonState, tmp_path: Path
) -> None:
    engine = ContainerdBundles(tmp_path, MEMORY)
    train, proxy = engine.container("train"), engine.container("proxy")
    before = proxy.text()
    with running(train.create(node), train, node), pytest.raises(QuotaError) as refused:
        proxy.create(node)
    assert str(refused.value) == (
        "pod annotation gpushare.io/memory=4GiB: names no container, and train of pod team/job-1 "
        "has it. Use gpushare.io/container.train.memory, and gpushare.io/container.proxy.memory "
        "if this one needs a share of a GPU too."
    )
    assert proxy.text() == before
    assert allocated(node) == 4 * GIB


def test_two_containers_that_are_named_get_their_own(node: DaemonState, tmp_path: Path) -> None:
    asked = {
        "gpushare.io/container.train.memory": "4GiB",
        "gpushare.io/container.eval.memory": "2GiB",
    }
    engine = ContainerdBundles(tmp_path, asked)
    for name in ("train", "eval"):
        assert engine.container(name).create(node)["mode"] == "shared"
    assert allocated(node) == 6 * GIB
    proxy = engine.container("proxy")
    assert proxy.create(node)["mode"] == "none"
    why = next(entry.why for entry in node.ledger.entries.values() if entry.state == "none")
    assert 'are for "eval", "train", and this is "proxy"' in why


def test_an_init_container_gives_it_back_before_the_next_asks(
    node: DaemonState, tmp_path: Path
) -> None:
    # The card has room for one of them at a time.
    engine = ContainerdBundles(tmp_path, {"gpushare.io/memory": "100GiB"})
    beside = ContainerdBundles(tmp_path, {"gpushare.io/memory": "100GiB"}, pod="77aa")
    for attempt, name in enumerate(("fetch", "warm", "train")):
        container = engine.container(name)
        with running(container.create(node), container, node):
            assert allocated(node) == 100 * GIB
            with pytest.raises(NoRoom):
                beside.container("other", attempt=attempt).create(node)


def test_a_container_that_is_started_again_is_the_same_one(
    node: DaemonState, tmp_path: Path
) -> None:
    engine = ContainerdBundles(tmp_path, MEMORY)
    for attempt in range(3):
        container = engine.container("train", attempt=attempt)
        with running(container.create(node), container, node):
            assert allocated(node) == 4 * GIB


def test_what_the_operator_set_outlives_a_restart_by_the_kubelet(
    node: DaemonState, tmp_path: Path
) -> None:
    """The kubelet makes a container with another ID, in the same pod and under the same name."""
    engine = ContainerdBundles(tmp_path, {"gpushare.io/memory": "4GiB"})
    train = engine.container("train")
    with running(train.create(node), train, node):
        [record] = node.ledger.entries.values()
        set_quota(record, {"memory": "6GiB", "cores": "20"}, node)
    train = engine.container("train", attempt=1)
    with running(train.create(node), train, node):
        [record] = node.ledger.entries.values()
        assert (record.id, record.allocations[0].memory_bytes) == ("train-1", 6 * GIB)
        assert record.allocations[0].cores == 20
        reset_quota(record, [], node)
        assert allocated(node) == 4 * GIB
    train = engine.container("train", attempt=2)
    with running(train.create(node), train, node):
        assert allocated(node) == 4 * GIB, "a reset outlives it too"


def test_a_container_whose_runtime_failed_does_not_block_the_next(
    node: DaemonState, tmp_path: Path
) -> None:
    engine = ContainerdBundles(tmp_path, MEMORY)
    with FakeProcess() as runtime:
        engine.container("train").create(node, maker=runtime.pid)
        with pytest.raises(QuotaError, match="names no container"):
            engine.container("next").create(node)
        runtime.kill()
    assert engine.container("next", attempt=1).create(node)["mode"] == "shared"
    assert allocated(node) == 4 * GIB


def test_an_engines_value_for_one_container_is_not_the_pods(
    node: DaemonState, tmp_path: Path
) -> None:
    engine = ContainerdBundles(tmp_path, {})
    for name in ("train", "eval"):
        made = engine.container(name, memory="4GiB").create(node)
        assert node.ledger.entries[made["key"]].quota == {
            "memory": {"value": "4GiB", "source": "annotation"}
        }


@pytest.mark.parametrize("hidden", ["gone", "damaged", "a link", "a path"])
def test_where_the_sandbox_cannot_be_seen_all_is_the_pod_s(
    node: DaemonState, tmp_path: Path, hidden: str
) -> None:
    engine = ContainerdBundles(tmp_path, {})
    sandbox = engine.tasks / "5a4d"
    if hidden == "a path":
        engine.pod = "../.."
        (tmp_path / "config.json").write_text(json.dumps({"annotations": {}}))
    elif hidden == "damaged":
        (sandbox / "config.json").write_text("{")
    else:
        sandbox.rename(engine.tasks / "moved")
    if hidden == "a link":
        sandbox.symlink_to(engine.tasks / "moved")
    made = engine.container("train", memory="4GiB").create(node)
    assert node.ledger.entries[made["key"]].quota == {
        "memory": {"value": "4GiB", "source": "pod annotation"}
    }


def test_a_cri_o_sandbox_is_found_beside_its_container(tmp_path: Path) -> None:
    sandbox = tmp_path / "overlay-containers" / "5a4d" / "userdata"
    sandbox.mkdir(parents=True)
    (sandbox / "config.json").write_text(json.dumps({"annotations": MEMORY}))
    beside = tmp_path / "overlay-containers" / "c1" / "userdata"
    assert sandbox_annotations({**MEMORY, **_of_sandbox("5a4d")}, str(beside)) == MEMORY
    assert sandbox_annotations({**MEMORY, **_of_sandbox("77aa")}, str(beside)) is None


def _of_sandbox(identity: str) -> dict[str, str]:
    """Return what CRI-O says of a container of that sandbox."""
    return {
        "io.kubernetes.container.name": "train",
        "io.kubernetes.cri-o.SandboxID": identity,
    }


TASK = "/run/containerd/io.containerd.runtime.v2.task"


@pytest.mark.parametrize(
    ("bundle", "is_believed"),
    [
        (f"{TASK}/k8s.io/4f1c", True),
        ("/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/4f1c", True),
        ("/run/containers/storage/overlay-containers/4f1c/userdata", True),
        ("/var/run/containers/storage/overlay-containers/4f1c/userdata/", True),
        ("/tmp/bundle", True),  # root's own runc
        (f"{TASK}/moby/4f1c", False),
        (f"{TASK}/docker-of-ci/4f1c", False),
        (f"{TASK}/default/4f1c", False),
        ("/var/lib/containers/storage/overlay-containers/4f1c/userdata", False),
        ("/srv/run/containers/overlay-containers/4f1c/userdata", False),
    ],
)
def test_only_a_pod_engine_s_annotations_are_trusted(bundle: str, is_believed: bool) -> None:
    annotations = {
        "io.kubernetes.cri.container-name": "train",
        "io.container.manager": "cri-o",
        **MEMORY,
    }
    said = trusted_annotations(bundle, annotations)
    assert (pod_of(said) is not None) == is_believed
    assert said["gpushare.io/memory"] == "4GiB"


def test_docker_containers_belong_to_no_pod_despite_annotations(
    node: DaemonState, tmp_path: Path
) -> None:
    engine = ContainerdBundles(tmp_path, MEMORY, Path("io.containerd.runtime.v2.task/moby"))
    entries = []
    for name in ("train", "eval"):
        # Nor does he have the environment's trust lowered by it.
        made = engine.container(name, "GPUSHARE_COUNT=1").create(node)
        entries.append(node.ledger.entries[made["key"]])
    assert [entry.namespace for entry in entries] == ["", ""]
    assert [entry.quota for entry in entries] == [
        {"memory": {"value": "4GiB", "source": "annotation"}}
    ] * 2
    assert all("would exceed" in entry.notes[0] for entry in entries)
