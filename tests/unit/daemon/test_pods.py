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
from gpushare.daemon.operator.resize import reset_quota, set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.record import TenantRecord
from gpushare.oci.request import sandbox_annotations, trusted_annotations
from gpushare.quota.annotations import pod_of
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon

MEMORY = {"gpushare.io/memory": "4GiB"}


class PodNode:
    """A node, and the bundles of the pods on it."""

    def __init__(self, folder: Path, node: FakeDaemon) -> None:
        self.folder, self.node = folder, node

    def pod(self, asked: dict[str, str] | None = None, **of: Any) -> ContainerdBundles:
        """Return a pod whose annotations are `asked`; without, 4 GiB for no container by name."""
        return ContainerdBundles(self.folder, MEMORY if asked is None else asked, **of)

    def create(self, container: BundleToCreate, maker: int = 0) -> TenantRecord:
        key = container.create(self.node, maker=maker)["key"]
        return self.node.ledger.entries[key]

    @contextmanager
    def running(self, container: BundleToCreate) -> Iterator[TenantRecord]:
        """Create the container and run a process in it: it is bound, and ends with this."""
        made = self.create(container)
        with FakeProcess() as process:
            bind.bind(made.key, container.identity, process.pid, os.getpid(), self.node)
            try:
                yield self.node.ledger.entries[made.key]
            finally:
                process.kill()

    @property
    def allocated(self) -> int:
        return sum(room.allocated_bytes for room in self.node.accounts.capacities())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[PodNode]:
    with fakes.node(tmp_path) as made:
        yield PodNode(tmp_path, made)


def test_a_second_container_is_refused_with_the_names_to_write(one: PodNode) -> None:
    pod = one.pod()
    train, proxy = pod.container("train"), pod.container("proxy")
    before = proxy.text()
    with one.running(train), pytest.raises(QuotaError) as refused:
        one.create(proxy)
    assert str(refused.value) == (
        "pod annotation gpushare.io/memory=4GiB: names no container, and train of pod team/job-1 "
        "has it. Use gpushare.io/container.train.memory, and gpushare.io/container.proxy.memory "
        "if this one needs a share of a GPU too."
    )
    assert proxy.text() == before
    assert one.allocated == 4 * GIB


def test_two_containers_that_are_named_get_their_own(one: PodNode) -> None:
    names = {"train": "4GiB", "eval": "2GiB"}
    pod = one.pod({f"gpushare.io/container.{name}.memory": text for name, text in names.items()})
    for name in names:
        assert one.create(pod.container(name)).shared
    assert one.allocated == 6 * GIB
    proxy = one.create(pod.container("proxy"))
    assert proxy.state == "none"
    assert 'are for "eval", "train", and this is "proxy"' in proxy.why


def test_an_init_container_gives_it_back_before_the_next_asks(one: PodNode) -> None:
    """The card has room for one of them at a time."""
    asked = {"gpushare.io/memory": "100GiB"}
    pod, beside = one.pod(asked), one.pod(asked, pod="77aa")
    for attempt, name in enumerate(("fetch", "warm", "train")):
        with one.running(pod.container(name)):
            assert one.allocated == 100 * GIB
            with pytest.raises(NoRoom):
                one.create(beside.container("other", attempt=attempt))


def test_a_container_that_is_started_again_is_the_same_one(one: PodNode) -> None:
    pod = one.pod()
    for attempt in range(3):
        with one.running(pod.container("train", attempt=attempt)):
            assert one.allocated == 4 * GIB


def test_what_the_operator_set_outlives_a_restart_by_the_kubelet(one: PodNode) -> None:
    """The kubelet makes a container with another ID, in the same pod and under the same name."""
    pod = one.pod()
    with one.running(pod.container("train")) as record:
        set_quota(record, {"memory": "6GiB", "cores": "20"}, one.node)
    with one.running(pod.container("train", attempt=1)) as record:
        assert (record.id, record.allocations[0].quota_bytes) == ("train-1", 6 * GIB)
        assert record.allocations[0].cores == 20
        reset_quota(record, [], one.node)
        assert one.allocated == 4 * GIB
    with one.running(pod.container("train", attempt=2)):
        assert one.allocated == 4 * GIB, "a reset outlives it too"


def test_a_container_whose_runtime_failed_does_not_block_the_next(one: PodNode) -> None:
    pod = one.pod()
    with FakeProcess() as runtime:
        one.create(pod.container("train"), maker=runtime.pid)
        with pytest.raises(QuotaError, match="names no container"):
            one.create(pod.container("next"))
        runtime.kill()
    assert one.create(pod.container("next", attempt=1)).shared
    assert one.allocated == 4 * GIB


def test_an_engines_value_for_one_container_is_not_the_pods(one: PodNode) -> None:
    pod = one.pod({})
    for name in ("train", "eval"):
        quota = one.create(pod.container(name, memory="4GiB")).quota
        assert quota == {"memory": {"value": "4GiB", "source": "annotation"}}


@pytest.mark.parametrize("hidden", ["gone", "damaged", "a link", "a path"])
def test_where_the_sandbox_cannot_be_seen_all_is_the_pod_s(one: PodNode, hidden: str) -> None:
    pod = one.pod({})
    sandbox = pod.tasks / "5a4d"
    if hidden == "a path":
        pod.pod = "../.."
        (one.folder / "config.json").write_text(json.dumps({"annotations": {}}))
    elif hidden == "damaged":
        (sandbox / "config.json").write_text("{")
    else:
        sandbox.rename(pod.tasks / "moved")
    if hidden == "a link":
        sandbox.symlink_to(pod.tasks / "moved")
    quota = one.create(pod.container("train", memory="4GiB")).quota
    assert quota == {"memory": {"value": "4GiB", "source": "pod annotation"}}


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
        ("/run/containers/storage/overlay-containers/4f1c/userdata", True),
        ("/var/run/containers/storage/overlay-containers/4f1c/userdata/", True),
        ("/tmp/bundle", True),  # root's own runc
        (f"{TASK}/moby/4f1c", False),
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


def test_docker_containers_belong_to_no_pod_despite_annotations(one: PodNode) -> None:
    moby = one.pod(tasks=Path("io.containerd.runtime.v2.task/moby"))
    for name in ("train", "eval"):
        # Nor is the environment's trust lowered by it.
        record = one.create(moby.container(name, "GPUSHARE_COUNT=1"))
        assert record.namespace == ""
        assert record.quota == {"memory": {"value": "4GiB", "source": "annotation"}}
        assert "would exceed" in record.notes[0]
