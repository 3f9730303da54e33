# SPDX-License-Identifier: Apache-2.0
"""What gpushared says of its containers and its node is what events and labels are made from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.views.daemon_status import status_row
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.kubernetes.api.events import PodContainer, pod_of, pod_of_event
from tests.unit.daemon import fakes
from tests.unit.daemon.bundles import ContainerdBundles
from tests.unit.daemon.fakes import FakeDaemon

UID = "3f0c7a52-5f1e-4bd6-9a53-8a6c1f3f9d01"


@pytest.fixture
def driver() -> fakes.FakeDriver:
    return fakes.FakeDriver(fakes.card(0))


@pytest.fixture
def node(
    tmp_path: Path, driver: fakes.FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeDaemon]:
    fakes.without_threads(monkeypatch)
    with fakes.node(tmp_path, driver) as made:
        yield made


def test_the_row_of_a_container_names_its_pod(node: FakeDaemon, tmp_path: Path) -> None:
    asked = {"gpushare.io/memory": "4GiB", "io.kubernetes.cri.sandbox-uid": UID}
    engine = ContainerdBundles(tmp_path, asked)
    made = engine.container("train").create(node)
    row = tenant_status(node.ledger.entries[made["key"]], node)
    assert pod_of(row["pod"]) == PodContainer("team", "job-1", UID, "train")


@pytest.mark.parametrize(
    ("name", "uid"), [("train", UID), ("team/job-1/train", ""), ("a/b", UID), ("a//b", UID)]
)
def test_other_containers_have_no_pod(name: str, uid: str) -> None:
    assert pod_of_event({"name": name, "fields": {"pod_uid": uid}}) is None
    assert pod_of_event({"name": name, "fields": {"pod": None}}) is None


def test_the_status_says_what_enforces_a_quota(node: FakeDaemon, driver: fakes.FakeDriver) -> None:
    assert status_row(node)["isolation"] == "interposer"
    driver.has_limits = True
    assert status_row(node)["isolation"] == "driver"
    node.node.driver = None
    assert status_row(node)["isolation"] == ""
