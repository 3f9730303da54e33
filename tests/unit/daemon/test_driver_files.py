# SPDX-License-Identifier: Apache-2.0
"""Which parts of the driver a container gets, and what is noted of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon.lifecycle import driver_files, release
from gpushare.daemon.limits import driver_limits
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.status_rows import tenant_row
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
    unknown, past = tenant_row(entry, node)["notes"]
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
        assert driver_limits.set_driver_limits(entry, node) == "audited"
        assert driver_limits.effective_isolation(replace(entry, isolation="driver")) == "audited"


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
    folder = node.config.state_dir / "compat" / entry.compat
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
    filtered = str(node.libraries / "libcuda.so.1")
    assert mounts(container)[f"/usr/local/cuda/compat/libcuda.so.{version}"] == filtered
    assert not (node.config.state_dir / "compat").exists()


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
    folder = node.config.state_dir / "compat" / entry.compat
    old = time.time() - 2 * 24 * 3600
    os.utime(folder, (old, old))
    driver_files.sweep_compat(node)
    assert folder.is_dir()
    release.release_tenant(entry.key, node, "it ended")
    release.reconcile_tenants(node, node.freezer)
    node.names.run(lambda: None)
    assert not folder.exists()
