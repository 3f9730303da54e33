# SPDX-License-Identifier: Apache-2.0
"""create: images and file systems that are slow, or never answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.lifecycle import container_edits, create, release
from gpushare.daemon.store.ledger import ReservationLost

from . import fakes
from .bundles import BundleToCreate
from .fakes import FakeDaemon

SHARE = "GPUSHARE_MEMORY=4GiB"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path) as made:
        yield made


def test_a_create_without_a_client_ends_and_releases_its_reservation(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    folder = container.folder / "rootfs/usr/local/cuda/compat"
    folder.mkdir(parents=True)
    with (folder / "libcuda.so.999.10").open("wb") as library:
        library.truncate(1 << 30)
    before = container.text()
    blocks = 0
    read = os.pread

    def count(*arguments: Any) -> bytes:
        nonlocal blocks
        blocks += 1
        return read(*arguments)

    monkeypatch.setattr(os, "pread", count)
    with container.bundle() as bundle, pytest.raises(create.CreateAbandoned):
        create.create(replace(bundle, is_abandoned=lambda: blocks > 3), node, node.room)
    assert blocks < 100  # of a thousand
    assert not node.ledger.entries
    assert container.text() == before
    store = node.node.config.state_dir / "compat"
    assert not store.exists() or not list(store.iterdir())


def test_a_reservation_that_is_lost_meanwhile_leaves_the_bundle_as_it_was(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    before = container.text()
    choose = container_edits.choose_files

    def expire(*arguments: Any) -> Any:
        node.decide.run(lambda: release.release_tenant(arguments[2].key, node, "it expired"))
        return choose(*arguments)

    monkeypatch.setattr(container_edits, "choose_files", expire)
    with pytest.raises(ReservationLost, match="was released while"):
        container.create(node)
    assert container.text() == before
    assert not node.ledger.entries
