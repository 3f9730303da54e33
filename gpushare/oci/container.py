# SPDX-License-Identifier: Apache-2.0
"""Builds the spec edits for a container with a GPU.

A pass over a bundle:

    loaded = spec.load(bundle_fd)
    original = edits.strip(loaded)              # what the engine wrote
    request = injected_gpu.find(original, driver)  # the GPU that the engine had put there
    ...                                         # quota.parse_request, resolve_request, placement
    wanted = container.shared(...)              # or whole(...), or Wanted() for no GPU
    cache = container.install_cache(...)        # None, or one more mount
    edited = edits.apply(original, wanted.with_mount(cache), request.taken)
    spec.store(bundle_fd, edited, loaded)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare.oci import driver_files, loader
from gpushare.oci import driver_files as drivers
from gpushare.oci.cdi import CdiDeviceNode, CdiEdits, CdiMount
from gpushare.oci.driver_files import CUDA, NVML, DriverFiles
from gpushare.oci.edits import Device, Edits, Hook, Mount
from gpushare.oci.elf import Platform
from gpushare.oci.loader import CacheEntry, Filters, install_cache
from gpushare.oci.rootfs import Rootfs

__all__ = [
    "CacheEntry",
    "ContainerEdits",
    "Filters",
    "HostFiles",
    "binding_hook",
    "driver_mounts",
    "install_cache",
    "shared",
    "tenant_mounts",
    "whole",
]

DRIVER_DIR: Final = "/opt/gpushare/driver"  # GPUSHARE_DRIVER_DIR of gpushare_abi.h
TENANT_DIR: Final = "/opt/gpushare/tenant"  # GPUSHARE_TENANT_DIR
STATUS_NAME: Final = "status"  # GPUSHARE_STATUS_NAME

_HOOK_ENV: Final = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
# Seconds after which the runtime kills the hook: later than the hook itself gives up (30 s for a
# daemon that is starting, 1 s for the acknowledgement and 10 s for the answer, and those once more
# of a daemon that ends over it, runtime/client.h), so that what is shown is its own message and not
# the runtime's about a timeout.
_HOOK_SECONDS: Final = 60
_FILE: Final = ("bind", "ro", "nosuid", "nodev")
_TENANT: Final = ("bind", "ro", "nosuid", "nodev", "noexec")
_STATUS: Final = ("bind", "rw", "nosuid", "nodev", "noexec")


@dataclass(frozen=True)
class HostFiles:
    """What is the same for every container of this machine."""

    driver: DriverFiles
    filters: Filters
    platform: Platform


@dataclass(frozen=True)
class ContainerEdits:
    """What a container gets: edits of its spec, and names for its loader's cache.

    `nodes` are what the devices of its edits were made from.
    """

    edits: Edits = field(default_factory=Edits)
    cache: tuple[CacheEntry, ...] = ()
    nodes: tuple[CdiDeviceNode, ...] = ()

    def with_mount(self, mount: Mount | None) -> Edits:
        """Return the edits with `mount` as the last one; as they are for None."""
        if mount is None:
            return self.edits
        return replace(self.edits, mounts=(*self.edits.mounts, mount))


def shared(  # noqa: PLR0913 - a container is put together from all there is
    host: HostFiles,
    cards: Sequence[Sequence[str]],
    *,
    rootfs: Rootfs,
    hooks: tuple[Hook, ...],
    tenant_directory: str,
    extra: frozenset[str] = frozenset(),
    visible: str = "",
) -> ContainerEdits:
    """Return what a container with a share of `cards` gets; `visible` is the only one it uses.

    Each card is the names that the CDI spec may have for it: `("GPU-4f1c...", "0")`. The filters go
    over every name by which the loader, or a program that knows where to look, finds the driver;
    the real libraries lie where only the filters look. `extra` are the capabilities beyond compute
    and utility that it gets, past the filters. CdiError where a card or node is missing.
    """
    driver = host.driver
    edits = driver.cdi.edits_for(cards)
    places = loader.Places(rootfs, host.platform, driver)
    libraries = drivers.shared_libraries(driver, extra)
    mounts = (
        *driver_mounts(driver),
        *_mounts(places.filters(host.filters)),
        *_mounts(places.libraries(libraries)),
        *(_cdi_mount(mount, rootfs) for mount in drivers.shared_files(edits, driver, extra)),
        *tenant_mounts(tenant_directory),
    )
    names = (CUDA, "libcuda.so", NVML, *(library.soname for library in libraries))
    nodes = drivers.shared_nodes(edits, extra)
    env = _env(edits) | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    return ContainerEdits(
        Edits(env, mounts, devices(nodes), hooks), places.cache_entries(names), nodes
    )


def whole(
    host: HostFiles,
    cards: Sequence[Sequence[str]],
    *,
    rootfs: Rootfs,
    hooks: tuple[Hook, ...],
    wanted: frozenset[str] = frozenset(driver_files.ALL),
) -> ContainerEdits:
    """Return what a container with whole `cards` gets: the driver as it is, and no filter.

    Of the driver it gets the capabilities `wanted`. CdiError as `shared`.
    """
    driver = host.driver
    edits = driver.cdi.edits_for(cards)
    places = loader.Places(rootfs, host.platform, driver)
    native = [
        library
        for library in driver.libraries
        if library.is_native(driver) and library.is_wanted(wanted)
    ]
    mounts = (
        *_mounts(places.driver(native)),
        *_mounts(places.libraries([lib for lib in native if not lib.is_filtered])),
        *(_cdi_mount(mount, rootfs) for mount in drivers.wanted_files(edits, driver, wanted)),
    )
    names = [library.soname for library in native]
    names += ["libcuda.so"] if driver.cuda in native else []
    nodes = drivers.wanted_nodes(edits, wanted)
    return ContainerEdits(
        Edits(_env(edits), mounts, devices(nodes), hooks), places.cache_entries(names), nodes
    )


def binding_hook(program: str, socket: str, key: str) -> Hook:
    """Return the hook that tells gpushared the container's process.

    `program` is gpushare-hook's absolute path, `socket` the daemon's, `key` the tenant's.
    """
    words = ("gpushare-hook", "createRuntime", "--socket", socket, "--key", key)
    return Hook("createRuntime", program, words, _HOOK_ENV, _HOOK_SECONDS)


def driver_mounts(driver: DriverFiles) -> tuple[Mount, ...]:
    """Return the mounts of the real libraries, where the filters' DT_NEEDED names them."""
    return (
        Mount(driver.cuda.host_path, f"{DRIVER_DIR}/{CUDA}", _FILE),
        Mount(driver.nvml.host_path, f"{DRIVER_DIR}/{NVML}", _FILE),
    )


def tenant_mounts(directory: str) -> tuple[Mount, ...]:
    """Return the mounts of a tenant's folder: read-only, and over it `status`, which it writes."""
    return (
        Mount(directory, TENANT_DIR, _TENANT),
        Mount(f"{directory}/{STATUS_NAME}", f"{TENANT_DIR}/{STATUS_NAME}", _STATUS),
    )


def _mounts(files: Iterable[tuple[str, str]]) -> tuple[Mount, ...]:
    return tuple(Mount(source, destination, _FILE) for source, destination in files)


def _cdi_mount(mount: CdiMount, rootfs: Rootfs) -> Mount:
    options = mount.options or _FILE
    if not {"bind", "rbind"} & set(options):
        options = ("rbind", *options)
    return Mount(mount.host_path, rootfs.resolve(mount.container_path), options)


def devices(nodes: Iterable[CdiDeviceNode]) -> tuple[Device, ...]:
    """Return the devices that `nodes` are now; CdiError where the host does not have one."""
    return tuple(node.device() for node in nodes)


def _env(edits: CdiEdits) -> dict[str, str]:
    return {name: value for name, _, value in (entry.partition("=") for entry in edits.env)}
