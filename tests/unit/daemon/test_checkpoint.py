# SPDX-License-Identifier: Apache-2.0
"""Dumping and restoring a container with CRIU: refused for one with a GPU, and for no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.lifecycle import create
from gpushare.daemon.service.control_request import ControlRequest
from gpushare.daemon.service.control_server import find_operation
from gpushare.daemon.state import DaemonState
from gpushare.errors import UserError

from . import fakes
from .bundles import BundleToCreate
from .test_callers import CALLERS

GPU = "GPUSHARE_MEMORY=4GiB"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[fakes.FakeDaemon]:
    with fakes.node(tmp_path) as made:
        yield made


def checkpoint(node: fakes.FakeDaemon, identity: str) -> None:
    request = ControlRequest({"op": "checkpoint", "id": identity}, CALLERS["root"])
    find_operation(request, node.operations).run(request, node)


def restore(container: BundleToCreate, node: DaemonState) -> str:
    with container.bundle() as bundle:
        return str(create.create(replace(bundle, is_restore=True), node)["mode"])


def test_a_container_with_a_gpu_is_not_dumped(node: fakes.FakeDaemon, tmp_path: Path) -> None:
    BundleToCreate(tmp_path / "gpu", GPU, identity="train").create(node)
    with pytest.raises(UserError, match=r"^container train uses a GPU, and a checkpoint has no"):
        checkpoint(node, "train")
    checkpoint(node, "other")


def test_a_container_without_one_is_dumped(node: fakes.FakeDaemon, tmp_path: Path) -> None:
    image = BundleToCreate(tmp_path / "plain", "NVIDIA_VISIBLE_DEVICES=all", identity="plain")
    assert image.create(node)["mode"] == "none"
    checkpoint(node, "plain")


def test_a_container_with_a_gpu_is_not_restored_and_gets_nothing(
    node: fakes.FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "gpu", GPU, identity="train")
    before = container.text()
    with pytest.raises(UserError, match=r"^container train requests a GPU, and a checkpoint has"):
        restore(container, node)
    assert (container.text(), dict(node.ledger.entries)) == (before, {})


def test_one_without_is_restored(node: fakes.FakeDaemon, tmp_path: Path) -> None:
    image = BundleToCreate(tmp_path / "plain", "NVIDIA_VISIBLE_DEVICES=all", identity="plain")
    assert restore(image, node) == "none"
