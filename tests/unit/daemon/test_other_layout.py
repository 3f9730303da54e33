# SPDX-License-Identifier: Apache-2.0
"""Pages of another version of gpushare, newer or older: they hold, and nobody touches them."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon.control.resize import NotResizable, set_quota
from gpushare.daemon.life.bind import bind
from gpushare.daemon.life.release import adopt, reconcile
from gpushare.daemon.memory.lend import lend
from gpushare.daemon.node import Node
from gpushare.daemon.pages.grant import Grant, Granted, OtherLayout

from . import fakes
from .fakes import GIB
from .operations import opened


@contextmanager
def daemon(folder: Path) -> Iterator[Node]:
    """The next daemon, which has found what there is."""
    with fakes.again(folder) as node:
        node.decide.run(lambda: adopt(node))
        yield node


@pytest.fixture
def tenant(tmp_path: Path, program: subprocess.Popen[bytes]) -> str:
    """A bound tenant with 40 GiB that may be lent up to 60."""
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
        # What it may have been lent, nobody takes back: it is promised to nobody.
        assert node.rooms()[0].free_bytes == (140 - 60) * GIB
        opened(node, memory="80GiB", devices="0")
        lend(node)
        reconcile(node)
        with pytest.raises(NotResizable, match="of another version of gpushare; start it again"):
            set_quota(node.ledger.entries[tenant], {"memory": "10GiB"}, node)
    assert [page.read_bytes() for page in pages(tmp_path, tenant)] == before
    write_version(tmp_path, tenant, abi.ABI_VERSION)
    with daemon(tmp_path) as node:
        assert node.tenants.pages[tenant].grant.memory_bytes(0) == 40 * GIB
        set_quota(node.ledger.entries[tenant], {"memory": "10GiB"}, node)


def test_when_it_ends_what_it_had_is_free(
    tenant: str, tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    write_version(tmp_path, tenant, abi.ABI_VERSION + 1)
    with daemon(tmp_path) as node:
        program.kill()
        program.wait()
        reconcile(node)
        assert tenant not in node.ledger.entries
        assert tenant not in node.mounts.made()
        assert node.rooms()[0].free_bytes == 140 * GIB


@pytest.mark.parametrize("size", [abi.PAGE_BYTES, 2 * abi.GRANT_BYTES])
def test_a_layout_of_another_size_is_told_by_its_beginning(tmp_path: Path, size: int) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    Grant.make(directory, "0" * 16, [Granted("GPU-a", GIB, 0, 0)])
    with (tmp_path / "grant").open("r+b") as file:
        file.seek(abi.GRANT_HEADER_ABI_VERSION)
        file.write(struct.pack("<I", abi.ABI_VERSION + 1))
        file.truncate(size)
    with pytest.raises(OtherLayout, match=f"have version {abi.ABI_VERSION + 1}"):
        Grant.adopt(directory)
    os.close(directory)


@pytest.mark.parametrize("content", [b"", b"x" * 64, struct.pack("<Q", abi.ABI_MAGIC)])
def test_what_is_no_grant_page_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "grant").write_bytes(content)
    directory = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="start it again"):
        Grant.adopt(directory)
    os.close(directory)
