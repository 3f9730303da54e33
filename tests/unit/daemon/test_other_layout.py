# SPDX-License-Identifier: Apache-2.0
"""Pages of another version of gpushare, newer or older: they hold, and are never touched."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.lifecycle.release import adopt_tenants, reconcile_tenants
from gpushare.daemon.limits.burst import update_burst_limits
from gpushare.daemon.operator.resize import NotResizable, set_quota
from gpushare.daemon.pages.grant_page import CardGrant, GrantPage, LayoutMismatch

from . import fakes
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon
from .operations import opened


@contextmanager
def daemon(folder: Path) -> Iterator[FakeDaemon]:
    """The next daemon, which has found what there is."""
    with fakes.again(folder) as node:
        node.decide.run(lambda: adopt_tenants(node, node.freezer))
        yield node


@pytest.fixture
def tenant(tmp_path: Path, program: FakeProcess) -> str:
    """A bound tenant with 40 GiB and a burst limit of 60."""
    with fakes.node(tmp_path) as node:
        made = opened(node, memory="40GiB", memory_limit="60GiB", devices="0")
        entry = node.ledger.entries[made["key"]]
        node.decide.run(lambda: bind(entry.key, entry.id, program.pid, os.getpid(), node))
        return entry.key


def pages(folder: Path, key: str) -> list[Path]:
    [grant] = (folder / "run" / "tenants" / key).rglob("grant")
    return [grant, grant.with_name("status")]


def write_version(folder: Path, key: str, version: int) -> None:
    for page in pages(folder, key):
        with page.open("r+b") as file:
            file.seek(abi.GRANT_HEADER_ABI_VERSION)
            file.write(struct.pack("<I", version))


@pytest.mark.parametrize("version", [abi.ABI_VERSION - 1, abi.ABI_VERSION + 1])
def test_they_are_kept_as_they_are_until_a_daemon_knows_them(
    version: int, tenant: str, tmp_path: Path
) -> None:
    write_version(tmp_path, tenant, version)
    before = [page.read_bytes() for page in pages(tmp_path, tenant)]
    with daemon(tmp_path) as node:
        assert node.ledger.entries[tenant].state == "bound"
        assert tenant not in node.tenants.pages
        # Burst memory that it may have is not taken back, and not allocated to others.
        assert node.capacities()[0].available_bytes == (140 - 60) * GIB
        opened(node, memory="80GiB", devices="0")
        update_burst_limits(node)
        reconcile_tenants(node, node.freezer)
        with pytest.raises(
            NotResizable, match="of another version of gpushare; restart the container"
        ):
            set_quota(node.ledger.entries[tenant], {"memory": "10GiB"}, node)
    assert [page.read_bytes() for page in pages(tmp_path, tenant)] == before
    write_version(tmp_path, tenant, abi.ABI_VERSION)
    with daemon(tmp_path) as node:
        assert node.tenants.pages[tenant].grant.memory_bytes(0) == 40 * GIB
        set_quota(node.ledger.entries[tenant], {"memory": "10GiB"}, node)


@pytest.mark.parametrize("size", [abi.PAGE_BYTES, 2 * abi.GRANT_BYTES])
def test_a_layout_of_another_size_is_recognized_by_its_first_bytes(
    tmp_path: Path, size: int
) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "grant").write_bytes(b"x" * 64)
    with pytest.raises(OSError, match="restart the container"):
        GrantPage.adopt(directory)
    (tmp_path / "grant").unlink()
    GrantPage.make(directory, "0" * 16, [CardGrant("GPU-a", GIB, 0, 0)])
    with (tmp_path / "grant").open("r+b") as file:
        file.seek(abi.GRANT_HEADER_ABI_VERSION)
        file.write(struct.pack("<I", abi.ABI_VERSION + 1))
        file.truncate(size)
    with pytest.raises(LayoutMismatch, match=f"have version {abi.ABI_VERSION + 1}"):
        GrantPage.adopt(directory)
    os.close(directory)
