# SPDX-License-Identifier: Apache-2.0
"""The tmpfs of tenants that are mounted before they are needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.pages.mounts import PAGES, TenantMounts
from tests import leftovers

from .waiting import wait_until

pytestmark = pytest.mark.gate
BYTES = 1 << 20
KEY = "0123456789abcdef"


def _spares(root: Path) -> list[str]:
    return [entry.name for entry in root.iterdir() if entry.name.startswith(".spare-")]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "tenants"
    leftovers.remove(tmp_path / "tenants", "none")


@pytest.fixture
def mounts(root: Path) -> Iterator[TenantMounts]:
    made = TenantMounts(root, Path("/proc/self/ns/mnt"), BYTES)
    wait_until(lambda: len(made._spares) == 4)
    yield made
    made.close()


def test_one_of_the_spare_becomes_the_tenants(root: Path, mounts: TenantMounts) -> None:
    directory = mounts.make(KEY, size_bytes=BYTES, owner=1234)
    pages = root / KEY / PAGES
    assert pages.is_mount()
    assert os.fstat(directory).st_dev == pages.stat().st_dev
    os.close(directory)
    space = os.statvfs(pages)
    assert space.f_blocks * space.f_frsize == BYTES
    assert ((root / KEY).stat().st_uid, (root / KEY).stat().st_mode & 0o777) == (1234, 0o700)
    assert mounts.made() == [KEY]
    mounts.remove(KEY)
    assert not (root / KEY).exists()


def test_mounts_of_an_earlier_start_are_replaced(root: Path, mounts: TenantMounts) -> None:
    for _ in range(2):
        directory = mounts.make(KEY, size_bytes=BYTES)
        assert list((root / KEY / PAGES).iterdir()) == []
        (root / KEY / PAGES / "left").touch()
        os.close(directory)


def test_more_at_once_than_there_are_spare_ones(mounts: TenantMounts) -> None:
    keys = [f"{number:016x}" for number in range(20)]
    devices = set()
    for key in keys:
        directory = mounts.make(key, size_bytes=BYTES)
        devices.add(os.fstat(directory).st_dev)
        os.close(directory)
    assert mounts.made() == keys
    assert len(devices) == len(keys)


@pytest.mark.usefixtures("mounts")
def test_those_of_a_daemon_that_was_killed_are_swept(root: Path) -> None:
    left = set(leftovers.mounts_under(root))
    again = TenantMounts(root, Path("/proc/self/ns/mnt"), 0)
    assert len(left) == 4
    assert _spares(root) == []
    assert leftovers.mounts_under(root) == []
    again.close()


def test_none_is_left_when_it_is_closed(root: Path, mounts: TenantMounts) -> None:
    os.close(mounts.make(KEY, size_bytes=BYTES))
    mounts.close()
    assert _spares(root) == []
    assert leftovers.mounts_under(root) == [str(root / KEY / PAGES)]
