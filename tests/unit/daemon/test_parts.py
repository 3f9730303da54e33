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
from gpushare.daemon import backends
from gpushare.daemon.life import parts, release
from gpushare.daemon.memory import hard_limit
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry
from gpushare.daemon.views.rows import tenant_row
from tests.unit.host import elf

from . import fakes
from .bundles import Container
from .fakes import FakeDriver

SHARE = "GPUSHARE_MEMORY=4GiB"
NEWER = "590.10.01"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with fakes.node(tmp_path) as made:
        yield made


def given(container: Container, node: Node) -> Entry:
    key = container.create(node)["key"]
    return node.ledger.entries[key]


def mounts(container: Container) -> dict[str, str]:
    return {mount["destination"]: mount["source"] for mount in container.document()["mounts"]}


def with_compat(container: Container, version: str = NEWER) -> None:
    folder = container.folder / "rootfs/usr/local/cuda/compat"
    folder.mkdir(parents=True)
    (folder / f"libcuda.so.{version}").write_bytes(elf.library("libcuda.so.1"))


def test_an_ordinary_container_has_no_notes(node: Node, tmp_path: Path) -> None:
    entry = given(Container(tmp_path / "b", SHARE), node)
    assert (entry.notes, entry.isolation) == ((), "interposer")


def test_what_a_share_does_not_get_is_noted(node: Node, tmp_path: Path) -> None:
    container = Container(tmp_path / "b", SHARE, "NVIDIA_DRIVER_CAPABILITIES=compute,video,cudnn")
    entry = given(container, node)
    unknown, past = tenant_row(entry, node)["notes"]
    assert "no such capability: cudnn" in unknown
    assert past.startswith("not given: video (NVIDIA_DRIVER_CAPABILITIES)")
    assert "allow_uninterposed in gpushare.yaml" in past
    assert entry.isolation == "interposer"
    # It is still there after a restart of the daemon.
    with fakes.again(tmp_path) as after:
        assert after.ledger.entries[entry.key].notes == entry.notes


def test_by_the_nodes_policy_a_share_gets_it_and_the_audit_holds_it(tmp_path: Path) -> None:
    with fakes.node(tmp_path, config=Config(allow_uninterposed=True)) as node:
        container = Container(tmp_path / "b", SHARE, "NVIDIA_DRIVER_CAPABILITIES=all")
        entry = given(container, node)
        assert entry.isolation == "audit"
        assert entry.uninterposed == ("compat32", "display", "graphics", "ngx", "video")
        assert "charged by the audit" in entry.notes[0]
        other = Container(tmp_path / "c", SHARE)
        assert given(other, node).isolation == "interposer"


def test_a_driver_with_limits_holds_what_the_interposer_does_not_see(tmp_path: Path) -> None:
    with fakes.node(tmp_path, config=Config(allow_uninterposed=True)) as node:
        container = Container(tmp_path / "b", SHARE, "NVIDIA_DRIVER_CAPABILITIES=video")
        entry = given(container, node)
        # Without a driver that has limits, or where it refuses, it is the audit's again.
        assert hard_limit.impose(entry, node) == "audit"
        assert backends.alone(replace(entry, isolation="driver")) == "audit"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (elf.program("/lib/ld-musl-x86_64.so.1"), "is a program of musl"),
        (elf.program(None), "is a static program"),
        (elf.library_of_32_bit(), "is a program of another machine or of 32 bits"),
    ],
    ids=["musl", "static", "32 bits"],
)
def test_a_program_that_loads_no_driver_is_told_what_is_not_mediated(
    content: bytes, says: str, node: Node, tmp_path: Path
) -> None:
    container = Container(tmp_path / "b", SHARE)
    (container.folder / "rootfs/bin").mkdir()
    (container.folder / "rootfs/bin/sh").write_bytes(content)
    [note] = given(container, node).notes
    assert note.startswith(f"/bin/sh {says}")
    assert "the audit charges it" in note


def test_arguments_that_are_no_strings_hold_nobody_up(node: Node, tmp_path: Path) -> None:
    process = {"args": [None, 4], "env": ["PATH=/bin", SHARE], "cwd": 7}
    assert given(Container(tmp_path / "b", process=process), node).notes == ()


def test_a_newer_compat_is_the_containers_driver(node: Node, tmp_path: Path) -> None:
    container = Container(tmp_path / "b", SHARE)
    with_compat(container)
    entry = given(container, node)
    folder = node.config.state_dir / "compat" / entry.compat
    source = mounts(container)["/opt/gpushare/driver/libcuda.so.1"]
    assert source == f"{folder}/libcuda.so.{NEWER}"
    assert Path(source).read_bytes() == elf.library("libcuda.so.1")
    assert entry.notes[0].startswith(f"cuda-compat {NEWER} of the image is newer than")


@pytest.mark.parametrize("version", ["550.54.15", FakeDriver.driver_version])
def test_a_compat_that_is_not_newer_is_covered(version: str, node: Node, tmp_path: Path) -> None:
    container = Container(tmp_path / "b", SHARE)
    with_compat(container, version)
    entry = given(container, node)
    assert entry.notes == ()
    filtered = str(node.libraries / "libcuda.so.1")
    assert mounts(container)[f"/usr/local/cuda/compat/libcuda.so.{version}"] == filtered
    assert not (node.config.state_dir / "compat").exists()


def test_a_card_that_no_compat_is_made_for_keeps_the_hosts_driver(tmp_path: Path) -> None:
    card = fakes.card(model="GeForce RTX 4090", datacenter=False)
    with fakes.node(tmp_path, FakeDriver(card)) as node:
        container = Container(tmp_path / "b", SHARE)
        with_compat(container)
        [note] = given(container, node).notes
        assert "is not used: it is for cards of data centres, and GeForce RTX 4090 is none" in note
        real = mounts(container)["/opt/gpushare/driver/libcuda.so.1"]
        assert real == f"{tmp_path}/libcuda.so.1"


def test_a_compat_that_cannot_be_copied_leaves_the_hosts_driver(node: Node, tmp_path: Path) -> None:
    container = Container(tmp_path / "b", SHARE)
    with_compat(container)
    library = container.folder / f"rootfs/usr/local/cuda/compat/libcuda.so.{NEWER}"
    library.unlink()
    os.mkfifo(library)
    [note] = given(container, node).notes
    assert "is not used: it has /usr/local/cuda/compat/libcuda.so" in note
    assert "no regular file" in note


def test_a_copy_goes_when_nobody_has_had_it_for_a_day(node: Node, tmp_path: Path) -> None:
    container = Container(tmp_path / "b", SHARE)
    with_compat(container)
    entry = given(container, node)
    folder = node.config.state_dir / "compat" / entry.compat
    old = time.time() - 2 * 24 * 3600
    os.utime(folder, (old, old))
    parts.sweep_compat(node)
    assert folder.is_dir()
    release.end(entry.key, node, "it ended")
    release.reconcile(node)
    assert not folder.exists()


def test_whole_cards_are_told_of_no_filter(node: Node, tmp_path: Path) -> None:
    container = Container(
        tmp_path / "b", "GPUSHARE_COUNT=1", "NVIDIA_DRIVER_CAPABILITIES=compute,graphics"
    )
    (container.folder / "rootfs/bin").mkdir()
    (container.folder / "rootfs/bin/sh").write_bytes(elf.program(None))
    entry = given(container, node)
    assert (entry.isolation, entry.notes) == ("exclusive", ())
