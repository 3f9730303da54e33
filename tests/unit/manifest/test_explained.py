# SPDX-License-Identifier: Apache-2.0
"""What is explained of a container is what gpushared does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.config import Config
from gpushare.manifest import read
from gpushare.manifest.request import SANDBOX, NodeRequest, request_on_node
from gpushare.quota.effective_request import Defaults
from gpushare.quota.errors import QuotaError
from gpushare.quota.request import to_record
from gpushare.quota.request_policy import Dialects, MaxPerRequest, RequestPolicy
from tests.unit.daemon import fakes
from tests.unit.daemon.bundles import BundleToCreate, ContainerdBundles
from tests.unit.daemon.fakes import FakeDaemon

GIB = 1 << 30
CONFIG = Config(
    terms=RequestPolicy(
        Defaults(placement="spread"), MaxPerRequest(memory_bytes=64 * GIB, allow_exclusive=True)
    ),
    namespaces=(
        ("team", RequestPolicy(Defaults(cores=20), trust="reduce")),
        ("strict", RequestPolicy(dialects=Dialects("strict"))),
        ("deaf", RequestPolicy(trust="ignore", dialects=Dialects(accept=frozenset()))),
    ),
)

Made = Callable[[Path], BundleToCreate]


def plain(*env: str, **changes: Any) -> Made:
    """A container of root's own runc."""

    def make(folder: Path) -> BundleToCreate:
        (folder / "bundle").mkdir()
        return BundleToCreate(folder / "bundle", *env, **changes)

    return make


def in_pod(asked: dict[str, str], *env: str, namespace: str = "team", cores: str = "") -> Made:
    """A container of a pod, through containerd's CRI plugin."""
    own = {"cores": cores} if cores else {}

    def make(folder: Path) -> BundleToCreate:
        return ContainerdBundles(folder, asked, namespace=namespace).container(
            "train", *env, attempt=0, **own
        )

    return make


CASES: dict[str, Made] = {
    "nothing": plain(),
    "an image's own variable": plain("NVIDIA_VISIBLE_DEVICES=all"),
    "memory": plain("GPUSHARE_MEMORY=4GiB"),
    "memory and cores": plain("GPUSHARE_MEMORY=4GiB", "GPUSHARE_CORES=30"),
    "a percentage": plain("GPUSHARE_MEMORY_PERCENT=25"),
    "a whole card": plain("GPUSHARE_COUNT=1"),
    "above a ceiling": plain("GPUSHARE_MEMORY=100GiB"),
    "cores alone": plain("GPUSHARE_CORES=30"),
    "no size": plain("GPUSHARE_MEMORY=4Q"),
    "no key": plain("GPUSHARE_MEMROY=4GiB"),
    "HAMi's": plain("CUDA_DEVICE_MEMORY_LIMIT=4g", "CUDA_DEVICE_SM_LIMIT=30"),
    "two dialects": plain("CUDA_DEVICE_MEMORY_LIMIT=4g", "GPUSHARE_MEMORY=2GiB"),
    "a pod's annotation": in_pod({"gpushare.io/memory": "4GiB"}),
    "a pod's, for another": in_pod({"gpushare.io/container.other.memory": "4GiB"}),
    "a pod's, for it": in_pod({"gpushare.io/container.train.memory": "4GiB"}, "GPUSHARE_MEMORY=1g"),
    "a pod's variable": in_pod({}, "GPUSHARE_MEMORY=4GiB"),
    "a plugin's beside the pod's": in_pod({"gpushare.io/memory": "8GiB"}, cores="30"),
    "HAMi's, in a pod": in_pod({"gpushare.io/memory": "8GiB"}, "CUDA_DEVICE_MEMORY_LIMIT_0=4096m"),
    "two dialects, strict": in_pod(
        {"gpushare.io/memory": "8GiB", "gpu-memory": "4096"}, namespace="strict"
    ),
    "a dialect that is not taken": in_pod({"gpu-memory": "4096"}, namespace="deaf"),
}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    fakes.without_threads(monkeypatch)
    with fakes.node(tmp_path / "node", config=CONFIG) as made:
        yield made


def explained(container: BundleToCreate) -> NodeRequest:
    file = read(container.folder / "config.json")
    (found,) = file.containers
    return request_on_node(found, file, terms_of=CONFIG.terms_of)


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_explain_agrees_with_the_daemon(make: Made, node: FakeDaemon, tmp_path: Path) -> None:
    container = make(tmp_path)
    there = explained(container)
    if there.refused:
        with pytest.raises(QuotaError) as refusal:
            container.create(node)
        assert str(refusal.value) == there.refused
        return
    made = container.create(node)
    assert there.effective is not None
    assert there.effective.kind == made["mode"]
    entry = node.ledger.entries[made["key"]]
    asked = there.requested.quota if there.requested is not None else None
    assert asked is not None
    assert tuple(entry.notes) == asked.notes
    if made["mode"] == "none":
        assert entry.why == there.effective.why
    else:
        assert entry.quota == to_record(asked.requested)
        assert [allocation.cores for allocation in entry.allocations] == [there.effective.cores]


def test_a_sandbox_gets_nothing(tmp_path: Path) -> None:
    annotations = {"io.kubernetes.cri.container-type": "sandbox", "gpushare.io/memory": "4GiB"}
    container = plain(annotations=annotations)(tmp_path)
    there = explained(container)
    assert there.effective is not None
    assert (there.effective.kind, there.effective.why) == ("none", SANDBOX)


def test_edits_of_the_daemon_are_removed_first(node: FakeDaemon, tmp_path: Path) -> None:
    container = plain("GPUSHARE_MEMORY=4GiB")(tmp_path)
    before = explained(container)
    container.create(node)
    assert "gpushare-hook" in container.text().decode()
    assert explained(container) == before
