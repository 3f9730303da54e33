# SPDX-License-Identifier: Apache-2.0
"""Requests in other systems' words, at a create and afterwards."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.control.resize import set_quota
from gpushare.daemon.node import Node
from gpushare.daemon.views import rows
from gpushare.daemon.views.why import why
from gpushare.oci import pods
from gpushare.quota import Dialects, QuotaError, dialects
from gpushare.quota.dialects import Dialect, Row, Tables
from gpushare.quota.dialects.units import MIBS

from .bundles import Container, Engine

GIB = 1 << 30
HAMI = ("CUDA_DEVICE_MEMORY_LIMIT=4096m", "CUDA_DEVICE_SM_LIMIT=30")
MEANS = (
    'HAMi: env CUDA_DEVICE_MEMORY_LIMIT "4096m" is memory 4GiB, '
    'env CUDA_DEVICE_SM_LIMIT "30" is cores 30'
)
# Of a pod's author: a vendor's annotation that names no container.
ACME = Dialect(
    "acme", "Acme", (Row("acme.io/mem", "annotation", "asks", "Memory.", MIBS, "memory"),)
)


def hold(node: Node, terms: Dialects) -> None:
    """Have `terms` hold on `node`."""
    node.config = replace(node.config, terms=replace(node.config.terms, dialects=terms))


def test_a_container_of_another_system_has_its_share(tmp_path: Path, node: Node) -> None:
    made = Container(tmp_path / "b", *HAMI).create(node)
    entry = node.ledger.entries[made["key"]]
    [holding] = entry.holdings
    assert (holding.memory_bytes, holding.cores, entry.policy) == (4 * GIB, 30, "fixed-share")
    assert entry.quota["memory"] == "4GiB env"


def test_what_it_means_is_in_every_view_of_it(tmp_path: Path, node: Node) -> None:
    made = Container(tmp_path / "b", *HAMI).create(node)
    entry = node.ledger.entries[made["key"]]
    assert entry.notes == (MEANS,)
    assert rows.tenant_row(entry, node)["notes"] == [MEANS]
    assert why(entry, node)[0]["notes"] == [MEANS]


def test_what_it_asked_holds_when_an_operator_changes_the_rest(tmp_path: Path, node: Node) -> None:
    made = Container(tmp_path / "b", *HAMI).create(node)
    set_quota(node.ledger.entries[made["key"]], {"cores": "20"}, node)
    entry = node.ledger.entries[made["key"]]
    assert (entry.holdings[0].memory_bytes, entry.holdings[0].cores) == (4 * GIB, 20)
    assert entry.asked["cores"] == "30 env"


def test_two_dialects_are_refused_by_a_strict_node(tmp_path: Path, node: Node) -> None:
    hold(node, Dialects("strict"))
    container = Container(tmp_path / "b", "GPUSHARE_MEMORY=8GiB", *HAMI)
    before = container.text()
    with pytest.raises(QuotaError, match=r"asks as gpushare, and env CUDA_DEVICE.*asks as HAMi"):
        container.create(node)
    assert container.text() == before
    assert not node.ledger.entries


def test_one_that_is_not_taken_is_refused(tmp_path: Path, node: Node) -> None:
    hold(node, Dialects(accept=frozenset()))
    with pytest.raises(QuotaError, match="write GPUSHARE_MEMORY=4GiB GPUSHARE_CORES=30, or have"):
        Container(tmp_path / "b", *HAMI).create(node)


def test_one_that_is_left_gets_no_gpu_and_is_told_why(tmp_path: Path, node: Node) -> None:
    hold(node, Dialects(accept=frozenset(), others="ignore"))
    made = Container(tmp_path / "b", *HAMI).create(node)
    entry = node.ledger.entries[made["key"]]
    assert (made["given"], entry.state) == ("none", "none")
    assert 'CUDA_DEVICE_MEMORY_LIMIT (HAMi) "4096m" was not taken: hami is not in' in entry.why


def test_a_pods_annotation_is_for_one_container_in_any_words(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects, "TABLES", Tables([ACME]))
    engine = Engine(tmp_path, {"acme.io/mem": "1024"})
    first = engine.container("train").create(node)
    assert node.ledger.entries[first["key"]].quota == {"memory": "1GiB pod annotation"}
    with pytest.raises(QuotaError) as refused:
        engine.container("proxy").create(node)
    assert str(refused.value) == (
        'pod annotation acme.io/mem: "1024" names no container, and train of pod team/job-1 has '
        "it; write gpushare.io/container.train.memory, and gpushare.io/container.proxy.memory if "
        "this one needs a part of a GPU too"
    )


def test_what_to_write_is_in_the_words_of_who_asked(tmp_path: Path, node: Node) -> None:
    engine = Engine(tmp_path, {"gpu-fraction": "0.5"})
    assert engine.container("train").create(node)["given"] == "shared"
    with pytest.raises(QuotaError, match=r"train of pod .* has it; write gpu-fraction-container"):
        engine.container("proxy").create(node)


def test_a_pod_that_names_its_container_in_its_own_words(tmp_path: Path, node: Node) -> None:
    asked = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "train"}
    engine = Engine(tmp_path, asked)
    assert engine.container("proxy").create(node)["given"] == "none"
    made = engine.container("train").create(node)
    assert node.ledger.entries[made["key"]].quota == {"memory-percent": "50 annotation"}


def test_an_annotation_that_asks_is_one_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "TABLES", Tables([ACME]))
    assert pods.asks({"acme.io/mem": "1024"})
    assert not pods.asks({"acme.io/other": "1024"})
