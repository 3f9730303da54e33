# SPDX-License-Identifier: Apache-2.0
"""Where in a container the loader finds the driver: directories, names, and its cache."""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.oci import ldcache
from gpushare.oci.bounded_read import replace_file
from gpushare.oci.driver_files import CUDA, NVML, DriverFiles, Library
from gpushare.oci.edits import Mount
from gpushare.oci.elf import Platform
from gpushare.oci.rootfs import Rootfs, RootfsError

CACHE: Final = "/etc/ld.so.cache"

_CUDA_NAME: Final = re.compile(r"libcuda\.so(\.[0-9.]+)?", re.ASCII)
_NVML_NAME: Final = re.compile(r"libnvidia-ml\.so(\.[0-9.]+)?", re.ASCII)
_CACHED: Final = re.compile(rb"lib(cuda|nvidia-ml)\.so(\.[0-9.]+)?")
_TOOLKIT: Final = re.compile(r"cuda(-[0-9.]+)?", re.ASCII)
_KEPT: Final = ("bind", "ro", "nosuid", "nodev", "noexec")
# An image decides how much there is to look at, and every container's start waits for one thread.
_MOST_TOOLKITS: Final = 16
_MOST_CACHED: Final = 32
_MOST_PLACES: Final = 256
# Of caches that are kept on the host for images with a read-only layer.
_MOST_KEPT: Final = 512
_MOST_KEPT_BYTES: Final = 256 << 20
_MAKING: Final = 600.0  # seconds in which a container that was given one has been made
_READ_ONLY: Final = frozenset({errno.EROFS, errno.EXDEV, errno.EACCES, errno.EPERM})


@dataclass(frozen=True)
class Filters:
    """The filter libraries' files on the host, beneath the root-owned versioned folder."""

    cuda: str
    nvml: str


@dataclass(frozen=True)
class CacheEntry:
    """A name that the loader looks for, and the path in the container that it must find."""

    name: str
    path: str


class Places:
    """The places of one rootfs where the driver's libraries go; each is a path without links."""

    def __init__(
        self,
        rootfs: Rootfs,
        platform: Platform,
        driver: DriverFiles,
        searched: Sequence[str] = (),
    ) -> None:
        """`searched` are the folders in which programs look first (search_path.py)."""
        self._rootfs = rootfs
        self._driver = driver
        self.primary = _libc_directory(rootfs, platform) or driver.cuda.directory
        there = [path for path in platform.library_directories if rootfs.is_directory(path)]
        self._directories = tuple(dict.fromkeys((self.primary, *there, *driver.directories)))
        self._compat = compat_directories(rootfs)
        self._searched = (
            f"/lib/{platform.multiarch}",
            "/lib64",
            "/lib",
            "/usr/lib",
            "/usr/local/lib",
            *self._compat,
            *_cached_directories(rootfs, platform),
            *searched,
        )

    def filters(self, filters: Filters) -> list[tuple[str, str]]:
        """Return (source, destination) of the filters: over each name that finds the driver.

        That is every name in the loader's directories, made where it is missing; and whatever else
        the image has under such a name, above all in the folders of cuda-compat.
        """
        return self._over(filters.cuda, filters.nvml) + self._over_compat()

    def driver(self, libraries: Sequence[Library]) -> list[tuple[str, str]]:
        """Return (source, destination) of the two libraries themselves, for whole cards.

        Only of those that are among `libraries`; over those of cuda-compat too, which are this
        driver's by now or older than it.
        """
        cuda, nvml = self._driver.cuda, self._driver.nvml
        over = self._over(
            cuda.host_path if cuda in libraries else None,
            nvml.host_path if nvml in libraries else None,
        )
        return over + (self._over_compat() if cuda in libraries else [])

    def libraries(self, libraries: Sequence[Library]) -> list[tuple[str, str]]:
        """Return (source, destination) of each library under its SONAME, in one directory.

        No link is made and no ldconfig run: the SONAME is the name that the loader looks for.
        """
        return [
            (library.host_path, self._rootfs.resolve(f"{self.primary}/{library.soname}"))
            for library in libraries
        ]

    def missing(self, libraries: Sequence[Library]) -> list[Library]:
        """Return those of `libraries` that the image does not have in the loader's directories.

        An empty file is the mount point of an earlier start.
        """
        plain = [path.removeprefix("/usr") for path in self._directories]
        folders = dict.fromkeys((*self._directories, *plain))
        return [
            library
            for library in libraries
            if not any(self._rootfs.head(f"{path}/{library.soname}", 1) for path in folders)
        ]

    def cache_entries(self, names: Sequence[str]) -> tuple[CacheEntry, ...]:
        """Return the entries of the loader's cache for `names` in the primary directory."""
        return tuple(CacheEntry(name, f"{self.primary}/{name}") for name in dict.fromkeys(names))

    def _over(self, cuda: str | None, nvml: str | None) -> list[tuple[str, str]]:
        """Return what goes over the names of libcuda and libnvidia-ml; over none for None."""
        names = [(name, cuda) for name in (CUDA, "libcuda.so", *self._driver.cuda.names)]
        names += [(name, nvml) for name in (NVML, *self._driver.nvml.names)]
        over = {
            self._rootfs.resolve(f"{directory}/{name}"): source
            for directory in self._directories
            for name, source in names
        }
        for directory in (*self._directories, *self._searched):
            for name in self._rootfs.names(directory):
                if _CUDA_NAME.fullmatch(name):
                    over.setdefault(self._rootfs.resolve(f"{directory}/{name}"), cuda)
                elif _NVML_NAME.fullmatch(name):
                    over.setdefault(self._rootfs.resolve(f"{directory}/{name}"), nvml)
            _refuse_crowd(over)
        return [(source, place) for place, source in over.items() if source is not None]

    def _over_compat(self) -> list[tuple[str, str]]:
        """The parts beside libcuda in cuda-compat: libcuda takes those of its version only."""
        stems = {lib.stem: lib for lib in self._driver.libraries if lib.is_compute}
        over: dict[str, str] = {}
        for directory in self._compat:
            for name in self._rootfs.names(directory):
                library = stems.get(name.partition(".so")[0])
                if library is not None and library.is_native(self._driver):
                    over[self._rootfs.resolve(f"{directory}/{name}")] = library.host_path
            _refuse_crowd(over)
        return [(source, destination) for destination, source in over.items()]


def is_driver_name(name: str) -> bool:
    """Whether a file of that name is loaded as libcuda or libnvidia-ml."""
    return bool(_CUDA_NAME.fullmatch(name) or _NVML_NAME.fullmatch(name))


def _refuse_crowd(over: Mapping[str, object]) -> None:
    if len(over) > _MOST_PLACES:
        raise RootfsError(
            errno.E2BIG, f"the image has over {_MOST_PLACES} files called as the driver's are"
        )


def _libc_directory(rootfs: Rootfs, platform: Platform) -> str | None:
    """Return the folder of the image that its loader searches: the one where libc is.

    That a folder exists says little: a runtime makes those of its mounts, and they stay.
    """
    for directory in platform.library_directories:
        # Before /usr was merged libc was in /lib, and both folders were searched.
        for place in (directory, directory.removeprefix("/usr")):
            if rootfs.is_file(f"{place}/libc.so.6"):
                return directory
    return None


def compat_directories(rootfs: Rootfs) -> tuple[str, ...]:
    """Return the folders of the image where NVIDIA's cuda-compat packages lie."""
    toolkits = [name for name in rootfs.names("/usr/local") if _TOOLKIT.fullmatch(name)]
    return tuple(
        directory
        for toolkit in toolkits[:_MOST_TOOLKITS]
        for part in ("compat", "compat/lib", "compat/lib.real")
        if rootfs.is_directory(directory := f"/usr/local/{toolkit}/{part}")
    )


@dataclass(frozen=True)
class MergedCache:
    """An image's loader cache `before` (None: it has none), and `after` our entries came in.

    `required`: the libraries are not in the loader's directories, so only the cache leads to them.
    """

    before: bytes | None
    after: bytes
    required: bool = False


def merge_cache(
    rootfs: Rootfs, entries: Sequence[CacheEntry], platform: Platform, *, required: bool = False
) -> MergedCache | None:
    """Return the cache by which the image's loader finds `entries`; None: it stays as it is.

    An image without glibc's loader needs nothing. One whose cache is not understood keeps it: the
    loader's directories have the filters too. If the cache is `required`, the loader need not be in
    the image, and RootfsError or LoaderCacheError say why there is no cache.
    """
    if not required and not rootfs.is_file(platform.loader):
        return None
    try:
        before = rootfs.read(CACHE, ldcache.MAX_BYTES)
        wanted = tuple((entry.name, entry.path) for entry in entries)
        after = _merged(before, wanted, platform.cache_flags)
    except (RootfsError, ldcache.LoaderCacheError):
        if required:
            raise
        return None
    return None if after == before else MergedCache(before, after, required)


def put_cache(rootfs: Rootfs, merged: MergedCache, keep: Path) -> Mount | None:
    """Put the cache into the image, or return the mount that puts it over the image's.

    Where the layer is read-only, it is kept in the folder `keep` under its hash, and mounted. Of a
    container whose root is the host's nothing is replaced: it gets the mount. OSError as write(2);
    RootfsError where a cache that is required cannot be there.
    """
    if not rootfs.is_hosts():
        try:
            rootfs.replace(CACHE, merged.after)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
        else:
            return None
    # A mount needs something to go over, and in a read-only layer nothing can be made.
    if merged.before is None and merged.required:
        raise RootfsError(errno.EROFS, f"{CACHE} cannot be created", CACHE)
    return None if merged.before is None else Mount(str(_kept(keep, merged.after)), CACHE, _KEPT)


def _merged(cache: bytes | None, wanted: tuple[tuple[str, str], ...], flags: int) -> bytes:
    if cache is not None and len(cache) > ldcache.KEPT_BYTES:
        return ldcache.merge(cache, wanted, flags)
    return _merged_kept(cache, wanted, flags)


@functools.lru_cache(maxsize=32)
def _merged_kept(cache: bytes | None, wanted: tuple[tuple[str, str], ...], flags: int) -> bytes:
    return ldcache.merge(cache, wanted, flags)


def _kept(directory: Path, content: bytes) -> Path:
    path = directory / hashlib.sha256(content).hexdigest()
    if path.exists():
        os.utime(path)  # it is in use: `_drop_oldest` goes by the time
        return path
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)  # the caches are mounted into containers
    _drop_oldest(directory, len(content))
    replace_file(path, content, 0o644)
    return path


def _drop_oldest(directory: Path, size: int) -> None:
    """Make room for a file of `size`: every image may bring a cache of its own.

    A file that a container has mounted stays there when its name is gone. Files of the last moments
    stay, because their containers may not have been made yet.
    """
    files = []
    with os.scandir(directory) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            files.append((status.st_mtime, status.st_size, entry.path))
    files.sort()
    total, count = sum(own for _, own, _ in files) + size, len(files) + 1
    recent = time.time() - _MAKING
    for used, own, path in files:
        if used > recent or (total <= _MOST_KEPT_BYTES and count <= _MOST_KEPT):
            return
        Path(path).unlink(missing_ok=True)
        total, count = total - own, count - 1


def _cached_directories(rootfs: Rootfs, platform: Platform) -> tuple[str, ...]:
    """The folders from which the image's own cache would take libcuda or libnvidia-ml."""
    try:
        data = rootfs.read(CACHE, ldcache.MAX_BYTES)
        if data is None:
            return ()
        read = _directories_in if len(data) > ldcache.KEPT_BYTES else _directories_kept
        return read(data, platform.cache_flags)
    except (OSError, ldcache.LoaderCacheError):
        return ()


@functools.lru_cache(maxsize=32)
def _directories_kept(cache: bytes, flags: int) -> tuple[str, ...]:
    return _directories_in(cache, flags)


def _directories_in(cache: bytes, flags: int) -> tuple[str, ...]:
    directories = (
        os.fsdecode(entry.path.rpartition(b"/")[0])
        for entry in ldcache.parse(cache).entries
        if entry.flags == flags and _CACHED.fullmatch(entry.name)
    )
    return tuple(itertools.islice(dict.fromkeys(directories), _MOST_CACHED))
