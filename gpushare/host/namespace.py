# SPDX-License-Identifier: Apache-2.0
"""The private mount namespace of a host process started by `gpushare run`.

It sees this host, but for what a container would see too: the filters over every name by which the
loader finds the driver, the driver itself and its own pages beneath /opt/gpushare. Nothing of it
reaches the host's namespace.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare import abi
from gpushare.errors import UserError
from gpushare.host import loader, mounts
from gpushare.oci import ldcache
from gpushare.oci.platform import this_platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpushare.protocol import MountRow

OURS: Final = Path("/opt/gpushare")
FILTERS: Final = OURS / "lib"
DRIVER: Final = Path(abi.DRIVER_DIR)
TENANT: Final = Path(abi.TENANT_DIR)


class NamespaceError(UserError):
    """The mounts of a tenant cannot be made on this host."""


def enter(rows: Sequence[MountRow], search: str = "") -> None:
    """Move this process into a mount namespace of its own and make the mounts of `rows` in it.

    `search` is the LD_LIBRARY_PATH that the process will have. NamespaceError says which mount
    failed; the process is then in no state to go on with.
    """
    try:
        mounts.unshare(mounts.CLONE_NEWNS)
        # What the host mounts later is still seen; what is mounted here is not.
        mounts.mount("none", "/", flags=mounts.MS_REC | mounts.MS_SLAVE)
        if not rows:
            return
        _make_room()
        for row in rows:
            _place(Path(row["source"]), Path(row["destination"]), read_only=row["read_only"])
        _cover(filters(rows), search)
    except OSError as error:
        raise NamespaceError(f"{error.filename}: {error.strerror}; cannot be mounted") from error


def filters(rows: Iterable[MountRow]) -> dict[str, Path]:
    """Return the filters in `rows`, by SONAME: where they are on the host."""
    found = [(Path(row["destination"]), Path(row["source"])) for row in rows]
    return {name.name: source for name, source in found if name.parent == FILTERS}


def _make_room() -> None:
    """Put a tmpfs at OURS, with what others keep there; the host itself is not written to."""
    if OURS.is_dir():
        _cover_folder(OURS, {name.name for name in (FILTERS, DRIVER, TENANT)})
    else:
        _cover_folder(OURS.parent, set())
        OURS.mkdir()


def _cover_folder(folder: Path, without: set[str]) -> None:
    """Put a tmpfs over `folder` and bind the folder's own entries into it, but those `without`."""
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
    """Bind `source` at `target`, which is made of its kind where it is not there."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.mkdir()
        else:
            target.touch()
    mounts.bind(source, target, read_only=read_only, recursive=recursive)


def _cover(ours: dict[str, Path], search: str) -> None:
    """Bind each filter over every name of its SONAME; one with none gets one in the cache."""
    nameless: list[tuple[str, str]] = []
    for soname, source in ours.items():
        names = loader.paths(soname, search=search)
        for name in names:
            mounts.bind(source, name, read_only=True)
        if not names:
            nameless.append((soname, str(FILTERS / soname)))
    if nameless:
        _extend_cache(nameless)


def _extend_cache(wanted: list[tuple[str, str]]) -> None:
    """Let the loader find `wanted` too, in a copy of its cache."""
    try:
        merged = ldcache.merge(loader.CACHE.read_bytes(), wanted, this_platform().cache_flags)
    except ldcache.LoaderCacheError as error:
        raise NamespaceError(f"{loader.CACHE}: {error}; run ldconfig") from error
    copy = OURS / "ld.so.cache"
    copy.write_bytes(merged)
    mounts.bind(copy, loader.CACHE, read_only=True)
