# SPDX-License-Identifier: Apache-2.0
"""An image that does not fit the driver or the card: noted, refused, or ignored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.driver_files import IncompatibleImage
from gpushare.daemon.placement.model import Card
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.views.status_rows import tenant_row
from gpushare.quota.request_policy import RequestPolicy

from . import fakes
from .bundles import BundleToCreate
from .fakes import FakeDriver

SHARE = "GPUSHARE_MEMORY=4GiB"
TOO_NEW = "CUDA_VERSION=14.0.1"  # of a driver of CUDA 13.0
H200 = replace(fakes.card(0), brand="nvidia", capability=(9, 0))
V100 = replace(fakes.card(0, 32, "V100"), brand="tesla", capability=(7, 0))
H200_BESIDE = fakes.card(1).uuid
REFUSE = Config(terms=RequestPolicy(compat="refuse"))


@contextmanager
def machine(
    tmp_path: Path, config: Config | None = None, card: Card = H200
) -> Iterator[DaemonState]:
    with fakes.node(tmp_path, FakeDriver(card), config=config or Config()) as made:
        yield made


def test_by_default_an_incompatibility_is_noted_and_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with machine(tmp_path) as node:
        key = BundleToCreate(tmp_path / "b", SHARE, TOO_NEW).create(node)["key"]
        [note] = tenant_row(node.ledger.entries[key], node)["notes"]
    assert note.startswith("CUDA 14.0 is newer than the driver's CUDA 13.0")
    assert "(driver-too-old); use an image with CUDA 13.0 or older" in note
    logged = capfd.readouterr().err
    assert '"event":"tenant-image-incompatible"' in logged
    assert '"rule":"driver-too-old"' in logged
    assert '"refused":false' in logged


def test_where_the_node_says_so_it_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with machine(tmp_path, REFUSE) as node:
        container = BundleToCreate(tmp_path / "b", SHARE, TOO_NEW)
        before = container.text()
        with pytest.raises(IncompatibleImage) as caught:
            container.create(node)
        assert node.ledger.entries == {}
        assert container.text() == before
    assert str(caught.value).startswith(
        "the image is incompatible with this node: CUDA 14.0 is newer than the "
    )
    assert "(driver-too-old); use an image with CUDA 13.0 or older" in str(caught.value)
    assert "compatibility: refuse of gpushare.yaml" in str(caught.value)


def mixed(tmp_path: Path, config: Config | None = None) -> AbstractContextManager[DaemonState]:
    """Return a node with an H200, and a V100 that shares would be placed on: it is smaller."""
    cards = (replace(fakes.card(1), brand="nvidia", capability=(9, 0)), V100)
    return fakes.node(tmp_path, FakeDriver(*cards), config=config or Config())


def placed(container: BundleToCreate, node: DaemonState) -> tuple[str, tuple[str, ...]]:
    """Return the card that a container gets, and its notes."""
    key = container.create(node)["key"]
    record = node.ledger.entries[key]
    return record.allocations[0].uuid, record.notes


@pytest.mark.parametrize("config", [Config(), REFUSE], ids=["warn", "refuse"])
@pytest.mark.parametrize(
    "need", ["CUDA_VERSION=13.0.0", "DTYPE=bfloat16", "NVIDIA_REQUIRE_ARCH=arch>=8.0"]
)
def test_the_needs_of_an_image_choose_the_card(tmp_path: Path, config: Config, need: str) -> None:
    with mixed(tmp_path, config) as node:
        assert placed(BundleToCreate(tmp_path / "any", SHARE), node)[0] == V100.uuid
        assert placed(BundleToCreate(tmp_path / "b", SHARE, need), node) == (H200_BESIDE, ())


def test_a_card_that_an_image_does_not_fit_is_used_only_if_the_policy_lets_it(
    tmp_path: Path,
) -> None:
    needs = (SHARE, "GPUSHARE_DEVICES=0", "CUDA_VERSION=13.0.0")
    with mixed(tmp_path) as node:
        card, notes = placed(BundleToCreate(tmp_path / "b", *needs), node)
        assert card == V100.uuid
        assert "(card-dropped)" in notes[0]
    with (
        mixed(tmp_path / "2", REFUSE) as node,
        pytest.raises(NoRoom) as caught,
    ):
        BundleToCreate(tmp_path / "c", *needs).create(node)
    assert str(caught.value).startswith(
        "no card has room for 4 GiB: card 0 (V100) does not fit the image: V100 has compute "
        "capability 7.0, which CUDA 12 was the last to build programs for"
    )
    assert "; use an image with CUDA 12 or older, or another card or see" in str(caught.value)


def test_with_action_ignore_no_container_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gpushare.compatibility.image.find_runtimes", lambda *_: pytest.fail("was looked at")
    )
    with machine(tmp_path, Config(terms=RequestPolicy(compat="ignore"))) as node:
        key = BundleToCreate(tmp_path / "b", SHARE, TOO_NEW).create(node)["key"]
        assert node.ledger.entries[key].notes == ()


def test_a_program_that_reads_unsupported_features_gets_a_note(tmp_path: Path) -> None:
    process = {"args": ["vllm", "serve", "--dtype=bfloat16"], "env": [SHARE], "cwd": "/"}
    with machine(tmp_path, card=V100) as node:
        key = BundleToCreate(tmp_path / "b", process=process).create(node)["key"]
        [note] = node.ledger.entries[key].notes
    assert "V100 has 7.0 (precision); use --dtype=half" in note


def test_a_whole_card_has_no_interposer_to_be_older(tmp_path: Path) -> None:
    with machine(tmp_path) as node:
        notes = []
        for number, asked in enumerate((SHARE, "GPUSHARE_COUNT=1")):
            container = BundleToCreate(tmp_path / f"b{number}", asked, "CUDA_VERSION=13.9.0")
            key = container.create(node)["key"]
            notes.append(["baseline" in note for note in node.ledger.entries[key].notes])
            release.release_tenant(key, node, "the next is to have the card")
        assert notes == [[False, True], [False]]


def test_files_in_the_root_are_read_beneath_it(tmp_path: Path) -> None:
    with machine(tmp_path, REFUSE) as node:
        container = BundleToCreate(tmp_path / "b", SHARE)
        lib = container.folder / "rootfs/usr/lib64"
        outside = tmp_path / "libcudart.so.14.0.1"
        outside.touch()
        (lib / outside.name).symlink_to(outside)
        assert container.create(node)["mode"] == "shared"
        (lib / outside.name).unlink()
        (lib / outside.name).touch()
        with pytest.raises(IncompatibleImage, match=r"/usr/lib64/libcudart|CUDA 14\.0"):
            container.create(node)
