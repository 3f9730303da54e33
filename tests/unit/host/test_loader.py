# SPDX-License-Identifier: Apache-2.0
"""By which names the loader finds a library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushare.host.driver import files
from gpushare.oci import ldcache
from gpushare.oci.elf import this_platform

if TYPE_CHECKING:
    from pathlib import Path

NAME = "libcuda.so.1"


def library(root: Path, path: str) -> Path:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(path)
    return place.resolve()


def write_cache(root: Path, *paths: str) -> None:
    flags = this_platform().cache_flags
    entries = tuple(ldcache.LdCacheEntry(NAME.encode(), path.encode(), flags) for path in paths)
    other = ldcache.LdCacheEntry(NAME.encode(), b"/lib32/libcuda.so.1", 3)
    (root / "etc").mkdir()
    (root / "etc/ld.so.cache").write_bytes(ldcache.dump(ldcache.LoaderCache((*entries, other))))


def test_the_order_is_the_loader_s(tmp_path: Path) -> None:
    mine = library(tmp_path, "mine/libcuda.so.1")
    compat = library(tmp_path, "usr/local/cuda/compat/libcuda.so.1")
    default = library(tmp_path, "usr/lib64/libcuda.so.1")
    library(tmp_path, "lib32/libcuda.so.1")
    write_cache(tmp_path, "/usr/local/cuda/compat/libcuda.so.1", "/gone/libcuda.so.1")
    search = f"{tmp_path}/mine:"
    assert files.library_paths(NAME, root=tmp_path, search=search) == [mine, compat, default]


def test_two_names_of_one_file_are_one(tmp_path: Path) -> None:
    real = library(tmp_path, "usr/lib64/libcuda.so.580.1")
    (tmp_path / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.580.1")
    (tmp_path / "lib64").symlink_to("usr/lib64")
    assert files.library_paths(NAME, root=tmp_path) == [real]


def test_a_cache_that_is_none_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"no cache")
    assert files.library_paths(NAME, root=tmp_path) == []
