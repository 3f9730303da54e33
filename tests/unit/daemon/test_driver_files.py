# SPDX-License-Identifier: Apache-2.0
"""Which parts of the driver a container gets, and what is noted of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon.lifecycle import container_edits, release
from gpushare.daemon.lifecycle.container_edits import IncompatibleImage
from gpushare.daemon.limits import effective_isolation, set_driver_limits
from gpushare.daemon.placement.model import Card
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.quota.request_policy import RequestPolicy
from tests.unit.host import elf

from . import fakes
from .bundles import BundleToCreate
from .fakes import FakeDaemon, FakeDriver

SHARE = "GPUSHARE_MEMORY=4GiB"
NEWER = "590.10.01"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path) as made:
        yield made


def given(container: BundleToCreate, node: FakeDaemon) -> TenantRecord:
    key = container.create(node)["key"]
    return node.ledger.entries[key]


def mounts(container: BundleToCreate) -> dict[str, str]:
    return {mount["destination"]: mount["source"] for mount in container.document()["mounts"]}


def with_compat(container: BundleToCreate, version: str = NEWER) -> None:
    folder = container.folder / "rootfs/usr/local/cuda/compat"
    folder.mkdir(parents=True)
    (folder / f"libcuda.so.{version}").write_bytes(elf.library("libcuda.so.1"))


def test_capabilities_that_a_share_does_not_get_are_noted(node: FakeDaemon, tmp_path: Path) -> None:
    container = BundleToCreate(
        tmp_path / "b", SHARE, "NVIDIA_DRIVER_CAPABILITIES=compute,video,cudnn"
    )
    entry = given(container, node)
    unknown, past = tenant_status(entry, node)["notes"]
    assert "no such capability: cudnn" in unknown
    assert past.startswith("not given: video (NVIDIA_DRIVER_CAPABILITIES)")
    assert "allow_bypass_capabilities in gpushare.yaml" in past
    assert entry.isolation == "interposer"
    # It is still there after a restart of the daemon.
    with fakes.again(tmp_path) as after:
        assert after.ledger.entries[entry.key].notes == entry.notes


def test_driver_limits_cover_memory_that_bypasses_the_interposer(tmp_path: Path) -> None:
    with fakes.node(tmp_path, config=Config(allow_uninterposed=True)) as node:
        container = BundleToCreate(tmp_path / "b", SHARE, "NVIDIA_DRIVER_CAPABILITIES=video")
        entry = given(container, node)
        # Without a driver that has limits, or where it refuses, it is the audit's again.
        assert set_driver_limits(entry, node) == "audited"
        assert effective_isolation(replace(entry, isolation="driver")) == "audited"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (elf.program("/lib/ld-musl-x86_64.so.1"), "uses musl"),
        (elf.program(None), "is statically linked"),
        (elf.library_of_32_bit(), "is built for another architecture or for 32 bits"),
    ],
    ids=["musl", "static", "32 bits"],
)
def test_a_program_that_loads_no_driver_gets_a_note_about_mediation(
    content: bytes, says: str, node: FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    (container.folder / "rootfs/bin").mkdir()
    (container.folder / "rootfs/bin/sh").write_bytes(content)
    [note] = given(container, node).notes
    assert note.startswith(f"/bin/sh {says}")
    assert "the audit charges their memory" in note


def test_malformed_arguments_delay_nothing(node: FakeDaemon, tmp_path: Path) -> None:
    process = {"args": [None, 4], "env": ["PATH=/bin", SHARE], "cwd": 7}
    assert given(BundleToCreate(tmp_path / "b", process=process), node).notes == ()


def test_a_newer_compat_is_the_containers_driver(node: FakeDaemon, tmp_path: Path) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    with_compat(container)
    entry = given(container, node)
    folder = node.node.config.state_dir / "compat" / entry.compat
    source = mounts(container)["/opt/gpushare/driver/libcuda.so.1"]
    assert source == f"{folder}/libcuda.so.{NEWER}"
    assert Path(source).read_bytes() == elf.library("libcuda.so.1")
    assert entry.notes[0].startswith(f"cuda-compat {NEWER} of the image is newer than")


@pytest.mark.parametrize("version", ["550.54.15", FakeDriver.driver_version])
def test_a_compat_that_is_not_newer_is_covered(
    version: str, node: FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    with_compat(container, version)
    entry = given(container, node)
    assert entry.notes == ()
    filtered = str(node.node.libraries / "libcuda.so.1")
    assert mounts(container)[f"/usr/local/cuda/compat/libcuda.so.{version}"] == filtered
    assert not (node.node.config.state_dir / "compat").exists()


def test_a_card_that_no_compat_is_made_for_keeps_the_hosts_driver(tmp_path: Path) -> None:
    card = fakes.card(model="GeForce RTX 4090", datacenter=False)
    with fakes.node(tmp_path, FakeDriver(card)) as node:
        container = BundleToCreate(tmp_path / "b", SHARE)
        with_compat(container)
        [note] = given(container, node).notes
        assert "is not used: it requires data center cards, and GeForce RTX 4090 is not one" in note
        real = mounts(container)["/opt/gpushare/driver/libcuda.so.1"]
        assert real == f"{tmp_path}/libcuda.so.1"


def test_a_compat_that_cannot_be_copied_leaves_the_hosts_driver(
    node: FakeDaemon, tmp_path: Path
) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    with_compat(container)
    library = container.folder / f"rootfs/usr/local/cuda/compat/libcuda.so.{NEWER}"
    library.unlink()
    os.mkfifo(library)
    [note] = given(container, node).notes
    assert "is not used: it has /usr/local/cuda/compat/libcuda.so" in note
    assert "no regular file" in note


def test_an_unused_copy_is_removed_after_a_day(node: FakeDaemon, tmp_path: Path) -> None:
    container = BundleToCreate(tmp_path / "b", SHARE)
    with_compat(container)
    entry = given(container, node)
    folder = node.node.config.state_dir / "compat" / entry.compat
    old = time.time() - 2 * 24 * 3600
    os.utime(folder, (old, old))
    container_edits.sweep_compat(node)
    assert folder.is_dir()
    release.release_tenant(entry.key, node, "it ended")
    release.reconcile_tenants(node, node.freezer)
    node.names.run(lambda: None)
    assert not folder.exists()


TOO_NEW = "CUDA_VERSION=14.0.1"  # of a driver of CUDA 13.0
H200 = replace(fakes.card(0), brand="nvidia", capability=(9, 0))
V100 = replace(fakes.card(0, 32, "V100"), brand="tesla", capability=(7, 0))
H200_BESIDE = fakes.card(1).uuid
REFUSE = Config(terms=RequestPolicy(compat="refuse"))


@contextmanager
def machine(
    tmp_path: Path, config: Config | None = None, card: Card = H200
) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, FakeDriver(card), config=config or Config()) as made:
        yield made


def test_by_default_an_incompatibility_is_noted_and_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with machine(tmp_path) as node:
        [note] = given(BundleToCreate(tmp_path / "b", SHARE, TOO_NEW), node).notes
    assert "(driver-too-old); use an image with CUDA 13.0 or older" in note
    logged = capfd.readouterr().err
    assert '"event":"tenant-image-incompatible"' in logged
    assert '"refused":false' in logged


def test_where_the_node_says_so_it_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with machine(tmp_path, REFUSE) as node:
        container = BundleToCreate(tmp_path / "b", SHARE, TOO_NEW)
        before = container.text()
        with pytest.raises(IncompatibleImage, match=r"\(driver-too-old\); use an image with"):
            container.create(node)
        assert node.ledger.entries == {}
        assert container.text() == before


def mixed(tmp_path: Path, config: Config | None = None) -> AbstractContextManager[FakeDaemon]:
    """Return a node with an H200, and a V100 that shares would be placed on: it is smaller."""
    cards = (replace(fakes.card(1), brand="nvidia", capability=(9, 0)), V100)
    return fakes.node(tmp_path, FakeDriver(*cards), config=config or Config())


def placed(container: BundleToCreate, node: FakeDaemon) -> tuple[str, tuple[str, ...]]:
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
    assert "card 0 (V100) does not fit the image: V100 has compute" in str(caught.value)


def test_with_action_ignore_an_image_gets_no_note(tmp_path: Path) -> None:
    with machine(tmp_path, Config(terms=RequestPolicy(compat="ignore"))) as node:
        assert given(BundleToCreate(tmp_path / "b", SHARE, TOO_NEW), node).notes == ()


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
