# SPDX-License-Identifier: Apache-2.0
"""Requests in other systems' words, at a create and afterwards."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.state import DaemonState
from gpushare.quota.errors import QuotaError
from gpushare.quota.request_policy import Dialects

from .bundles import BundleToCreate, ContainerdBundles

GIB = 1 << 30
HAMI = ("CUDA_DEVICE_MEMORY_LIMIT=4096m", "CUDA_DEVICE_SM_LIMIT=30")


# Of a pod's author: a vendor's annotation that names no container.
def hold(node: DaemonState, terms: Dialects) -> None:
    """Have `terms` hold on `node`."""
    node.config = replace(node.config, terms=replace(node.config.terms, dialects=terms))


def test_a_container_of_another_system_has_its_share(tmp_path: Path, node: DaemonState) -> None:
    made = BundleToCreate(tmp_path / "b", *HAMI).create(node)
    entry = node.ledger.entries[made["key"]]
    [allocation] = entry.allocations
    assert (allocation.memory_bytes, allocation.cores, entry.policy) == (4 * GIB, 30, "fixed-share")
    assert entry.quota["memory"] == {"value": "4GiB", "source": "env"}


def test_one_that_is_not_taken_is_refused(tmp_path: Path, node: DaemonState) -> None:
    hold(node, Dialects(accept=frozenset()))
    with pytest.raises(QuotaError, match="Write GPUSHARE_MEMORY=4GiB GPUSHARE_CORES=30, or add"):
        BundleToCreate(tmp_path / "b", *HAMI).create(node)


def test_advice_uses_the_dialect_of_the_request(tmp_path: Path, node: DaemonState) -> None:
    engine = ContainerdBundles(tmp_path, {"gpu-fraction": "0.5"})
    assert engine.container("train").create(node)["mode"] == "shared"
    with pytest.raises(QuotaError, match=r"train of pod .* has it. Use gpu-fraction-container."):
        engine.container("proxy").create(node)


def test_a_pod_names_its_container_in_its_own_dialect(tmp_path: Path, node: DaemonState) -> None:
    asked = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "train"}
    engine = ContainerdBundles(tmp_path, asked)
    assert engine.container("proxy").create(node)["mode"] == "none"
    made = engine.container("train").create(node)
    assert node.ledger.entries[made["key"]].quota == {
        "memory-percent": {"value": "50", "source": "annotation"}
    }
