# SPDX-License-Identifier: Apache-2.0
"""Old versions of gpushare's programs and libraries are removed once nothing uses them.

`gpushare.install` puts each version into a folder of its own and never writes to it again, so a
container keeps what it has mapped, whatever is installed. gpushared removes old versions when it
starts. Kept are the version that engines are told, the one before (to go back to), what was
installed in the last hour, what the bundle of a tenant names, and whatever a process has mapped.
Where that cannot be seen, or the prefix cannot be written, nothing is removed.

A file is known by the device and the inode that /proc/PID/maps says of it, whatever it is called in
a container. The device is not always the one of stat(2) (on btrfs and overlay it is another), so
each file of ours is mapped for a moment, to see how the kernel lists it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpushare import install
from gpushare.daemon.core.log import log
from gpushare.daemon.lifecycle.container_edits import mount_libraries
from gpushare.daemon.node import Node
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord

_VERSION: Final = re.compile(r"[^./][^/]*-[0-9a-f]{12}")
_DRAFT: Final = re.compile(rf"\.{_VERSION.pattern}\.[0-9a-f]{{8}}")
_YOUNG_SECONDS: Final = 3600.0  # `gpushare setup` may be about to make it the current one
_NOT_OURS: Final = {errno.EROFS, errno.EACCES, errno.EPERM}
_MOST_BYTES: Final = 4 << 20  # of a config.json, as the daemon reads no longer one


_File = tuple[bytes, bytes]  # device and inode, as in /proc/PID/maps


class Unknown(Exception):
    """The installations in use cannot be determined, so each may be in use."""


def sweep_installations(node: Node, ledger: Ledger) -> None:
    """Remove unused versions, and log it; on any thread."""
    prefix = prefix_of(node.config.libraries)
    if prefix is None:
        return
    try:
        for name in remove_unused(prefix, node.config.libraries, ledger.entries.values()):
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
        is_starting = any(record.state == "reserved" for record in ledger.entries.values())
        if stale and not is_starting:
            mounts.drop_trees(stale)
    except OSError as error:
        log("installation-removal-failed", "warning", error=str(error))


def prefix_of(libraries: Path) -> Path | None:
    """Return the folder of the versions that `libraries` is in; None where it is in none.

    A distribution may have put them elsewhere: what is there is its package's to remove.
    """
    root = libraries.parent
    if root.name == install.CURRENT or _VERSION.fullmatch(root.name):
        return root.parent
    return None


def remove_unused(prefix: Path, libraries: Path, records: Iterable[TenantRecord]) -> list[str]:
    """Remove the versions beneath `prefix` that nothing uses; return their names.

    `libraries` are those that new containers get. OSError where something is left half removed;
    a prefix that cannot be written is not an error.
    """
    kept = {libraries.resolve().parent.name, *_named(prefix)}
    removed: list[str] = []
    if not _candidates(prefix, kept):
        return removed
    with _locked(prefix) as is_locked:
        candidates = _candidates(prefix, kept) if is_locked else []
        try:
            for folder in _unused(candidates, records):
                _remove(folder)
                removed.append(folder.name)
        except Unknown:
            pass
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


def _unused(candidates: list[Path], records: Iterable[TenantRecord]) -> list[Path]:
    """Return the installations that no process uses or names; Unknown."""
    named = _bundles(records)
    words = {folder: os.fsencode(f"/{folder.name}/") for folder in candidates}
    left = {
        folder: _files(folder)
        for folder, word in words.items()
        if not any(word in config for config in named)
    }
    if not left:
        return []
    mapped = _mapped_files()
    return [folder for folder, files in left.items() if not files & mapped]


def _files(folder: Path) -> set[_File]:
    """Return how maps call the files in `folder`; the empty ones cannot be mapped by anybody."""
    files: set[_File] = set()
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ):
            maps = Path("/proc/self/maps").read_bytes().splitlines()
        files.update(_mapped(b"\n".join(line for line in maps if line.endswith(os.fsencode(path)))))
    return files


def _bundles(records: Iterable[TenantRecord]) -> list[bytes]:
    """Return what the config.json of each tenant says: its mounts, and hooks that come later."""
    configs = []
    for record in records:
        if not record.bundle:
            continue
        try:
            with (Path(record.bundle) / "config.json").open("rb") as file:
                configs.append(file.read(_MOST_BYTES))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Unknown from error
    return configs


def _mapped_files() -> set[_File]:
    """Return the files that any process has mapped; Unknown."""
    mapped: set[_File] = set()
    for process in Path("/proc").iterdir():
        # init, which a nested machine may not show, does not use our libraries.
        if not process.name.isdigit() or process.name == "1":
            continue
        try:
            mapped.update(_mapped((process / "maps").read_bytes()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        except OSError as error:
            raise Unknown from error
    return mapped


def _mapped(maps: bytes) -> Iterator[_File]:
    """Yield device and inode of what maps say (proc_pid_maps(5)); inode 0 is memory of no file."""
    for line in maps.splitlines():
        _, _, _, device, inode, *_ = line.split(maxsplit=5)
        if inode != b"0":
            yield device, inode


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
