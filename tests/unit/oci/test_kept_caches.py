# SPDX-License-Identifier: Apache-2.0
"""Loader caches that are kept on the host do not grow with the number of images."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpushare.oci import loader


def keep(folder: Path, content: bytes, age: float = 0.0) -> Path:
    path = loader._kept(folder, content)
    if age:
        then = time.time() - age
        os.utime(path, (then, then))
    return path


def test_caches_that_are_used_no_more_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_MOST_KEPT", 8)
    old = [keep(tmp_path, b"old %d" % number, 7200 - number) for number in range(8)]
    used = keep(tmp_path, b"old 0")  # by another container, just now
    new = keep(tmp_path, b"new")
    assert used == old[0]
    assert sorted(tmp_path.iterdir()) == sorted([old[0], *old[2:], new])


def test_the_size_is_bounded_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_MOST_KEPT_BYTES", 10_000)
    for number in range(20):
        keep(tmp_path, bytes([number]) * 3000, 7200 - number)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000


def test_a_cache_whose_container_may_not_be_made_yet_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_MOST_KEPT", 2)
    kept = [keep(tmp_path, b"%d" % number) for number in range(5)]
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_an_open_cache_outlives_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's mount of it does."""
    monkeypatch.setattr(loader, "_MOST_KEPT", 1)
    with keep(tmp_path, b"mounted", 7200).open("rb") as mounted:
        keep(tmp_path, b"another")
        assert mounted.read() == b"mounted"
    assert len(list(tmp_path.iterdir())) == 1
