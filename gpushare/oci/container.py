# SPDX-License-Identifier: Apache-2.0
"""Everything that a container with a GPU gets, put together: the daemon's one call into this package.

The order of a pass over a bundle:

    loaded = spec.load(bundle_fd)
    original = edits.strip(loaded)                  # what the engine wrote
    request = nvidia.find(original, driver)         # what it had put there for a GPU
    ... quota, placement ...
    wanted = container.shared(...)                  # or whole(...), or Edits() for none
    cache = container.install_cache(rootfs, ...)
    edited = edits.apply(original, wanted, request.taken)
    spec.store(bundle_fd, edited, loaded)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.oci.driver import Driver
from gpushare.oci.edits import Edits, Hook, Mount
from gpushare.oci.platform import Platform
from gpushare.oci.rootfs import Rootfs

DRIVER_DIR: Final = "/opt/gpushare/driver"  # GPUSHARE_DRIVER_DIR of gpushare_abi.h
TENANT_DIR: Final = "/opt/gpushare/tenant"  # GPUSHARE_TENANT_DIR


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


@dataclass(frozen=True)
class Wanted:
    """What a container gets: edits of its spec, and names for its loader's cache."""

    edits: Edits
    cache: tuple[CacheEntry, ...]


def shared(
    driver: Driver,
    cards: Sequence[Sequence[str]],
    *,
    filters: Filters,
    tenant_directory: str,
    hooks: tuple[Hook, ...],
    rootfs: Rootfs,
    platform: Platform,
) -> Wanted:
    """Return what a container with a share of `cards` gets; each card as the names CDI may have
    for it, e.g. `("GPU-4f1c...", "0")`. CdiError, OSError."""
    raise NotImplementedError


def whole(
    driver: Driver,
    cards: Sequence[Sequence[str]],
    *,
    hooks: tuple[Hook, ...],
    rootfs: Rootfs,
    platform: Platform,
) -> Wanted:
    """Return what a container with whole cards gets: the driver as it is, and no filter."""
    raise NotImplementedError


def hooks(program: str, socket: str, key: str) -> tuple[Hook, ...]:
    """Return the two hooks of ours: createRuntime binds the pid, poststop releases."""
    raise NotImplementedError


def driver_mounts(driver: Driver) -> tuple[Mount, ...]:
    """Return the mounts of the real libraries at /opt/gpushare/driver."""
    raise NotImplementedError


def tenant_mounts(directory: str) -> tuple[Mount, ...]:
    """Return the mounts of a tenant's folder: read-only, and `status` over it read-write."""
    raise NotImplementedError


def install_cache(
    rootfs: Rootfs, wanted: Sequence[CacheEntry], platform: Platform, keep: str
) -> Mount | None:
    """Put `wanted` first into the image's /etc/ld.so.cache.

    Where the rootfs is read-only the result is kept in the folder `keep` by its content's hash, and
    the mount that puts it over the image's cache is returned.
    """
    raise NotImplementedError
