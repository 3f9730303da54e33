# SPDX-License-Identifier: Apache-2.0
"""The private mount namespace of a host process started by `gpushare run`.

It contains the host's files and the same mounts as a container: the interposer libraries over every
name with which the loader finds the driver, and the driver and the tenant's pages in /opt/gpushare.
The mounts do not propagate to the host's namespace.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare import abi
from gpushare.errors import UserError
from gpushare.host import mounts
from gpushare.host.driver import files
from gpushare.oci import ldcache
from gpushare.oci.elf import this_platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpushare.protocol import MountRow

OURS: Final = Path("/opt/gpushare")
FILTERS: Final = OURS / "lib"
DRIVER: Final = Path(abi.DRIVER_DIR)
TENANT: Final = Path(abi.TENANT_DIR)


class NamespaceError(UserError):
    """The tenant's mounts failed on this host."""


def enter_new_namespace(rows: Sequence[MountRow], search: str = "") -> None:
    """Move this process into a new mount namespace and create the mounts of `rows` in it.

    `search` is the LD_LIBRARY_PATH of the future process. NamespaceError names the mount that
    failed; the process must then exit.
    """
    try:
        mounts.unshare(mounts.CLONE_NEWNS)
        # Later mounts on the host propagate here, but not the other way round.
        mounts.mount("none", "/", flags=mounts.MS_REC | mounts.MS_SLAVE)
        if not rows:
            return
        _make_room()
        for row in rows:
            _place(Path(row["source"]), Path(row["destination"]), read_only=row["read_only"])
        _cover(filters(rows), search)
    except OSError as error:
        raise NamespaceError(f"{error.filename}: mount failed: {error.strerror}") from error


def filters(rows: Iterable[MountRow]) -> dict[str, Path]:
    """Return the interposer libraries in `rows`: their paths on the host, by SONAME."""
    found = [(Path(row["destination"]), Path(row["source"])) for row in rows]
    return {name.name: source for name, source in found if name.parent == FILTERS}


def _make_room() -> None:
    """Mount a tmpfs at OURS that contains its other entries, without writing to the host."""
    if OURS.is_dir():
        _cover_folder(OURS, {name.name for name in (FILTERS, DRIVER, TENANT)})
    else:
        _cover_folder(OURS.parent, set())
        OURS.mkdir()


def _cover_folder(folder: Path, without: set[str]) -> None:
    """Mount a tmpfs over `folder` and bind the folder's entries into it, except `without`."""
    covered = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mounts.tmpfs(folder)
        beneath = Path(f"/proc/self/fd/{covered}")
        for entry in set(os.listdir(beneath)) - without:  # noqa: PTH208 - of a folder by its fd
            source, target = beneath / entry, folder / entry
            if source.is_symlink():
                target.symlink_to(source.readlink())
            else:
                _place(source, target, recursive=True)
    finally:
        os.close(covered)


def _place(source: Path, target: Path, *, read_only: bool = False, recursive: bool = False) -> None:
    """Bind `source` at `target`, which is created as a file or a folder if missing."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.mkdir()
        else:
            target.touch()
    mounts.bind(source, target, read_only=read_only, recursive=recursive)


def _cover(ours: dict[str, Path], search: str) -> None:
    """Bind each library over every file with its SONAME; if there is none, add it to the cache."""
    nameless: list[tuple[str, str]] = []
    for soname, source in ours.items():
        names = files.library_paths(soname, search=search)
        for name in names:
            mounts.bind(source, name, read_only=True)
        if not names:
            nameless.append((soname, str(FILTERS / soname)))
    if nameless:
        _extend_cache(nameless)


def _extend_cache(wanted: list[tuple[str, str]]) -> None:
    """Add `wanted` to the loader's cache, in a copy that is mounted over it."""
    try:
        merged = ldcache.merge(files.CACHE.read_bytes(), wanted, this_platform().cache_flags)
    except ldcache.LoaderCacheError as error:
        raise NamespaceError(f"{files.CACHE}: {error}. Run ldconfig") from error
    copy = OURS / "ld.so.cache"
    copy.write_bytes(merged)
    mounts.bind(copy, files.CACHE, read_only=True)
