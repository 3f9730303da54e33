# SPDX-License-Identifier: Apache-2.0
"""Old versions of gpushare's programs and libraries are removed when gpushared starts.

`gpushare.install` puts each version into a folder of its own and never writes to it again. Kept are
the version that engines are told, the one before (to go back to), and what was installed in the
last hour. A container keeps the libraries that are mounted in it when their folder is removed: a
mount has the file, not its name. What a container needs by name it needs while it is created, so
nothing is removed while one is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpushare import install
from gpushare.daemon.core.log import log
from gpushare.daemon.lifecycle.container_edits import mount_libraries
from gpushare.daemon.node import Node
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.store.ledger import Ledger

_VERSION: Final = re.compile(r"[^./][^/]*-[0-9a-f]{12}")
_DRAFT: Final = re.compile(rf"\.{_VERSION.pattern}\.[0-9a-f]{{8}}")
_YOUNG_SECONDS: Final = 3600.0  # `gpushare setup` may be about to make it the current one
_NOT_OURS: Final = {errno.EROFS, errno.EACCES, errno.EPERM}


def sweep_installations(node: Node, ledger: Ledger) -> None:
    """Remove old versions, and log it; on any thread."""
    prefix = prefix_of(node.config.libraries)
    if prefix is None or _is_starting(ledger):
        return
    try:
        for name in remove_old(prefix, node.config.libraries):
            log("installation-removed", folder=str(prefix / name))
    except OSError as error:
        log("installation-removal-failed", "warning", folder=str(prefix), error=str(error))


def renew_tree(node: Node, ledger: Ledger, mounts: TenantMounts) -> None:
    """Mount the tree of libraries ahead of need, and unmount those of earlier libraries.

    Not while a container that has one of them may be starting.
    """
    if node.driver is not None:
        mount_libraries(node, mounts)
    try:
        stale = mounts.stale_trees()
        if stale and not _is_starting(ledger):
            mounts.drop_trees(stale)
    except OSError as error:
        log("installation-removal-failed", "warning", error=str(error))


def _is_starting(ledger: Ledger) -> bool:
    return any(record.state == "reserved" for record in ledger.entries.values())


def prefix_of(libraries: Path) -> Path | None:
    """Return the folder of the versions that `libraries` is in; None where it is in none.

    A distribution may have put them elsewhere: what is there is its package's to remove.
    """
    root = libraries.parent
    if root.name == install.CURRENT or _VERSION.fullmatch(root.name):
        return root.parent
    return None


def remove_old(prefix: Path, libraries: Path) -> list[str]:
    """Remove the old versions beneath `prefix`; return their names.

    `libraries` are those that new containers get. OSError where something is left half removed;
    a prefix that cannot be written is not an error.
    """
    kept = {libraries.resolve().parent.name, *_named(prefix)}
    removed: list[str] = []
    if not _candidates(prefix, kept):
        return removed
    with _locked(prefix) as is_locked:
        try:
            for folder in _candidates(prefix, kept) if is_locked else ():
                _remove(folder)
                removed.append(folder.name)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
    return [name for name in removed if _VERSION.fullmatch(name)]


def _named(prefix: Path) -> set[str]:
    """Return the names of the version that engines are set up with, and of the one before."""
    return {
        (prefix / link).readlink().name
        for link in (install.CURRENT, install.PREVIOUS)
        if (prefix / link).is_symlink()
    }


def _candidates(prefix: Path, kept: Collection[str]) -> list[Path]:
    """Return the folders that may go, the drafts of installations that were killed among them."""
    folders = []
    for entry in list(os.scandir(prefix)):
        if entry.name in kept or not entry.is_dir(follow_symlinks=False):
            continue
        if not (_VERSION.fullmatch(entry.name) or _DRAFT.fullmatch(entry.name)):
            continue
        if abs(time.time() - entry.stat(follow_symlinks=False).st_mtime) >= _YOUNG_SECONDS:
            folders.append(Path(entry.path))
    return sorted(folders)


@contextmanager
def _locked(prefix: Path) -> Iterator[bool]:
    """Hold off installations meanwhile; False where one is going on."""
    fd = os.open(prefix, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


def _remove(folder: Path) -> None:
    """Remove a folder, which cannot be found by its name from the first moment on."""
    doomed = folder
    if _VERSION.fullmatch(folder.name):
        doomed = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        folder.rename(doomed)
    shutil.rmtree(doomed)
