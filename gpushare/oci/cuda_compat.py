# SPDX-License-Identifier: Apache-2.0
"""cuda-compat: a libcuda newer than the host's driver, that an image brings for its own CUDA.

Its bytes are an image's, so they are reached beneath the root's descriptor, only regular files of a
limited size are taken, and what is mounted is a copy that only root can change. Copies are
kept by their content: however many images have the same compat package, there is one. Pages that
are all zeros are holes in a copy, so that a file with holes takes no more than in its image.
Source: NVIDIA, "CUDA Compatibility", forward compatibility.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.oci.driver_files import is_compute
from gpushare.oci.loader import compat_directories
from gpushare.oci.rootfs import Rootfs

MOST_BYTES: Final = 1 << 30  # of one package; the largest known is a third of it
STORE_BYTES: Final = 4 << 30
KEPT_SECONDS: Final = 24 * 3600.0

LibraryVersion = tuple[int, ...]

_NAME: Final = re.compile(r"(lib[a-z0-9_-]+)\.so\.([0-9]{3,}(?:\.[0-9]+)+)", re.ASCII)
_DRAFT: Final = "."
_DRAFT_SECONDS: Final = 600.0  # until then a copy may be one that a starting container is to get
_BLOCK: Final = 1 << 20
_PAGE: Final = 4096
_ZEROS: Final = bytes(_PAGE)
_MOST_KNOWN: Final = 256
_WAIT_SECONDS: Final = 0.1
# Each takes up to MOST_BYTES of the disk before it counts.
_copies: Final = threading.BoundedSemaphore(4)

# The digest of a file that was read already, and its bytes without holes: by device, inode, size
# and both times.
_known: dict[tuple[int, ...], tuple[str, int]] = {}


class CompatError(ValueError):
    """The image's cuda-compat cannot be used; says why. The host's driver can."""


@dataclass(frozen=True)
class Compat:
    """A compat package of an image: its version, and its files' paths by their names."""

    version: LibraryVersion
    files: Mapping[str, str]

    @property
    def text(self) -> str:
        """The version as it is written: 590.10.01."""
        return next(name for name in self.files if name.startswith("libcuda."))[
            len("libcuda.so.") :
        ]


def version(text: str) -> LibraryVersion:
    """Return a driver's version for comparing: `550.54.15` is (550, 54, 15)."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", text))


def find(rootfs: Rootfs) -> Compat | None:
    """Return the newest compat package of the image, None where it has none."""
    newest: Compat | None = None
    for directory in compat_directories(rootfs):
        names = [match for name in rootfs.names(directory) if (match := _NAME.fullmatch(name))]
        for release in {match[2] for match in names if match[1] == "libcuda"}:
            files = {
                match[0]: f"{directory}/{match[0]}"
                for match in names
                if match[2] == release and (match[1] == "libcuda" or is_compute(match[1]))
            }
            compat = Compat(version(release), files)
            if newest is None or compat.version > newest.version:
                newest = compat
    return newest


def keep(
    rootfs: Rootfs,
    compat: Compat,
    store: Path,
    used: Collection[str] = (),
    check: Callable[[], None] = lambda: None,
) -> Path:
    """Return the folder of `store` with a copy of the package; made where it is not there.

    `used` are the names of the folders that containers have. `check` is called again and again, and
    ends it by an exception: an image chooses how much there is to read. CompatError where it may
    not be copied, OSError as write(2).
    """
    while not _copies.acquire(timeout=_WAIT_SECONDS):
        check()
    try:
        return _keep(_Source(rootfs, compat, check), store, used)
    finally:
        _copies.release()


def sweep(store: Path, used: Collection[str], kept_seconds: float = KEPT_SECONDS) -> list[str]:
    """Remove the copies that no container has had for a while; return their names."""
    removed = []
    for folder in _folders(store):
        least = _DRAFT_SECONDS if folder.name.startswith(_DRAFT) else kept_seconds
        if folder.name not in used and _age(folder) > least:
            shutil.rmtree(folder)
            removed.append(folder.name)
    return removed


@dataclass(frozen=True)
class _Source:
    rootfs: Rootfs
    found: Compat
    check: Callable[[], None]

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the path of each file."""
        yield from sorted(self.found.files.items())


def _keep(source: _Source, store: Path, used: Collection[str]) -> Path:
    digests = {}
    length = size = 0
    for name, path in source.files():
        with _opened(source.rootfs, path) as fd:
            length += os.fstat(fd).st_size
            if length > MOST_BYTES:
                raise CompatError(f"is over {MOST_BYTES >> 20} MiB")
            digests[name], taken = _digest(fd, source.check)
            size += taken
    target = store / _name(digests)
    if target.is_dir():
        os.utime(target)
        return target
    store.mkdir(parents=True, exist_ok=True)
    store.chmod(0o755)  # the copies are mounted into containers
    if _make_room(store, size, used) < size:
        raise CompatError(f"finds {store} full ({STORE_BYTES >> 30} GiB, all of it in use)")
    return _copy(source, store, size)


def _copy(source: _Source, store: Path, size: int) -> Path:
    """Copy the files; the name is that of what was copied, whatever was there a moment ago."""
    draft = store / f"{_DRAFT}{secrets.token_hex(8)}"
    draft.mkdir(mode=0o700)
    try:
        digests = {}
        for name, path in source.files():
            with _opened(source.rootfs, path) as fd:
                digests[name] = _copied(fd, draft / name, size, source.check)
        draft.chmod(0o755)
        target = store / _name(digests)
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():  # another container of the same image was faster
                raise
            shutil.rmtree(draft)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return target


def _copied(source: int, target: Path, limit: int, check: Callable[[], None]) -> str:
    """Copy a file of at most `limit` bytes beside its holes; return the digest of the copy."""
    length = os.fstat(source).st_size
    digest = _new_digest(length)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(target, flags, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.truncate(length)
        for offset, page in _pages(source, length, check):
            limit -= len(page)
            if limit < 0:
                raise CompatError("grows while it is copied")
            _add(digest, offset, page)
            file.seek(offset)
            file.write(page)
        os.fchmod(file.fileno(), 0o644)
    return digest.hexdigest()


def _digest(fd: int, check: Callable[[], None]) -> tuple[str, int]:
    """Return the digest of a file, and how many bytes it has beside its holes."""
    status = os.fstat(fd)
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    known = _known.get(key)
    if known is None:
        digest, size = _new_digest(status.st_size), 0
        for offset, page in _pages(fd, status.st_size, check):
            _add(digest, offset, page)
            size += len(page)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[key] = digest.hexdigest(), size
    return known


def _new_digest(length: int) -> hashlib._Hash:
    return hashlib.sha256(length.to_bytes(8, "little"))


def _add(digest: hashlib._Hash, offset: int, page: bytes) -> None:
    digest.update(offset.to_bytes(8, "little"))
    digest.update(page)


def _pages(fd: int, length: int, check: Callable[[], None]) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of each page that is not all zeros; holes are not read."""
    offset = 0
    while offset < length:
        check()
        try:
            offset = max(offset, os.lseek(fd, offset, os.SEEK_DATA) // _PAGE * _PAGE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
        block = os.pread(fd, min(_BLOCK, length - offset), offset)
        if not block:
            return
        for start in range(0, len(block), _PAGE):
            page = block[start : start + _PAGE]
            if page != _ZEROS[: len(page)]:
                yield offset + start, page
        offset += len(block)


@contextmanager
def _opened(rootfs: Rootfs, path: str) -> Iterator[int]:
    """Open a regular file of the image for reading; CompatError for anything else."""
    with rootfs.open(path, os.O_PATH) as opened:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise CompatError(f"has {path}, which is no regular file")
        fd = os.open(f"/proc/self/fd/{opened}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _name(digests: Mapping[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _make_room(store: Path, size: int, used: Collection[str]) -> int:
    """Remove unused copies, the oldest first, until `size` bytes fit; return what does."""
    sizes = {folder: _size(folder) for folder in _folders(store)}
    free = STORE_BYTES - sum(sizes.values())
    for folder in sorted(sizes, key=lambda folder: folder.stat().st_mtime):
        if free >= size:
            break
        if folder.name not in used and _age(folder) > _DRAFT_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
            free += sizes[folder]
    return free


def _age(folder: Path) -> float:
    return time.time() - folder.stat().st_mtime


def _folders(store: Path) -> list[Path]:
    return sorted(store.iterdir()) if store.is_dir() else []


def _size(folder: Path) -> int:
    """Return what the files take of the disk."""
    return sum(512 * path.stat().st_blocks for path in folder.iterdir())
