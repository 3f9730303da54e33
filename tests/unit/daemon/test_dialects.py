# SPDX-License-Identifier: Apache-2.0
"""Requests in other systems' words, at a create and afterwards."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.state import DaemonState
from gpushare.daemon.views import status_rows
from gpushare.daemon.views.why import explain_memory
from gpushare.oci import request as spec_request
from gpushare.quota import dialects
from gpushare.quota.dialects import Dialect, Tables, VendorKey
from gpushare.quota.dialects.units import MIBS
from gpushare.quota.errors import QuotaError
from gpushare.quota.request_policy import Dialects

from .bundles import BundleToCreate, ContainerdBundles

GIB = 1 << 30
HAMI = ("CUDA_DEVICE_MEMORY_LIMIT=4096m", "CUDA_DEVICE_SM_LIMIT=30")
MEANS = (
    'HAMi: env CUDA_DEVICE_MEMORY_LIMIT "4096m" is memory 4GiB, '
    'env CUDA_DEVICE_SM_LIMIT "30" is cores 30'
)
# Of a pod's author: a vendor's annotation that names no container.
ACME = Dialect(
    "acme",
    "Acme",
    (VendorKey("acme.io/mem", "Memory.", MIBS, "memory", where="annotation", role="request"),),
)


def hold(node: DaemonState, terms: Dialects) -> None:
    """Have `terms` hold on `node`."""
    node.config = replace(node.config, terms=replace(node.config.terms, dialects=terms))


def test_a_container_of_another_system_has_its_share(tmp_path: Path, node: DaemonState) -> None:
    made = BundleToCreate(tmp_path / "b", *HAMI).create(node)
    entry = node.ledger.entries[made["key"]]
    [allocation] = entry.allocations
    assert (allocation.memory_bytes, allocation.cores, entry.policy) == (4 * GIB, 30, "fixed-share")
    assert entry.quota["memory"] == {"value": "4GiB", "source": "env"}


def test_every_view_shows_the_translated_request(tmp_path: Path, node: DaemonState) -> None:
    made = BundleToCreate(tmp_path / "b", *HAMI).create(node)
    entry = node.ledger.entries[made["key"]]
    assert entry.notes == (MEANS,)
    assert status_rows.tenant_row(entry, node)["notes"] == [MEANS]
    assert explain_memory(entry, node)[0]["notes"] == [MEANS]


def test_the_request_holds_when_an_operator_changes_the_rest(
    tmp_path: Path, node: DaemonState
) -> None:
    made = BundleToCreate(tmp_path / "b", *HAMI).create(node)
    set_quota(node.ledger.entries[made["key"]], {"cores": "20"}, node)
    entry = node.ledger.entries[made["key"]]
    assert (entry.allocations[0].memory_bytes, entry.allocations[0].cores) == (4 * GIB, 20)
    assert entry.requested["cores"] == {"value": "30", "source": "env"}


def test_two_dialects_are_refused_by_a_strict_node(tmp_path: Path, node: DaemonState) -> None:
    hold(node, Dialects("strict"))
    container = BundleToCreate(tmp_path / "b", "GPUSHARE_MEMORY=8GiB", *HAMI)
    before = container.text()
    with pytest.raises(
        QuotaError, match=r"uses gpushare keys, and env CUDA_DEVICE.*uses HAMi keys"
    ):
        container.create(node)
    assert container.text() == before
    assert not node.ledger.entries


def test_one_that_is_not_taken_is_refused(tmp_path: Path, node: DaemonState) -> None:
    hold(node, Dialects(accept=frozenset()))
    with pytest.raises(QuotaError, match="Write GPUSHARE_MEMORY=4GiB GPUSHARE_CORES=30, or add"):
        BundleToCreate(tmp_path / "b", *HAMI).create(node)


def test_an_ignored_request_gets_no_gpu_and_a_reason(tmp_path: Path, node: DaemonState) -> None:
    hold(node, Dialects(accept=frozenset(), others="ignore"))
    made = BundleToCreate(tmp_path / "b", *HAMI).create(node)
    entry = node.ledger.entries[made["key"]]
    assert (made["mode"], entry.state) == ("none", "none")
    assert 'CUDA_DEVICE_MEMORY_LIMIT (HAMi) "4096m" was not applied: hami is not in' in entry.why


def test_a_pod_annotation_selects_one_container_in_any_dialect(
    tmp_path: Path, node: DaemonState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects, "TABLES", Tables([ACME]))
    engine = ContainerdBundles(tmp_path, {"acme.io/mem": "1024"})
    first = engine.container("train").create(node)
    assert node.ledger.entries[first["key"]].quota == {
        "memory": {"value": "1GiB", "source": "pod annotation"}
    }
    with pytest.raises(QuotaError) as refused:
        engine.container("proxy").create(node)
    assert str(refused.value) == (
        "pod annotation acme.io/mem=1024: names no container, and train of pod team/job-1 has "
        "it. Use gpushare.io/container.train.memory, and gpushare.io/container.proxy.memory if "
        "this one needs a share of a GPU too."
    )


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


def test_an_annotation_that_asks_is_one_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "TABLES", Tables([ACME]))
    assert spec_request.requests_gpu({"acme.io/mem": "1024"})
    assert not spec_request.requests_gpu({"acme.io/other": "1024"})
