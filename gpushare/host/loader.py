# SPDX-License-Identifier: Apache-2.0
"""By which names this host's loader finds a library, without running ldconfig.

Source: ld.so(8), "in this order": LD_LIBRARY_PATH, the cache, the default directories.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gpushare.host.tree import Tree
from gpushare.oci import ldcache
from gpushare.oci.platform import this_platform

CACHE: Final = Path("/etc/ld.so.cache")


def paths(soname: str, *, root: Path = Path("/"), search: str = "") -> list[Path]:
    """Return every file by which `soname` may be found, in the loader's order, each once.

    `search` is an LD_LIBRARY_PATH. Two names of one file are one; a cache that cannot be read
    counts as empty, as the loader takes it.
    """
    platform, tree = this_platform(), Tree(root.resolve())
    directories = [folder for folder in search.replace(";", ":").split(":") if folder]
    names = _cached(tree, soname, platform.cache_flags)
    defaults = (*platform.library_directories, "/lib64", "/usr/lib", "/lib")
    names += [f"{folder}/{soname}" for folder in defaults]
    found: dict[Path, None] = {}
    for named in directories:
        name = Path(named) / soname
        if name.is_file():
            found.setdefault(name.resolve())
    for path in names:
        real = tree.real(path)
        if real is not None and tree.at(real).is_file():
            found.setdefault(tree.at(real))
    return list(found)


def _cached(tree: Tree, soname: str, flags: int) -> list[str]:
    try:
        cache = ldcache.parse(tree.at(str(CACHE)).read_bytes())
    except (OSError, ldcache.LoaderCacheError):
        return []
    return [
        os.fsdecode(entry.path)
        for entry in cache.entries
        if entry.name == soname.encode() and entry.flags == flags
    ]
