# SPDX-License-Identifier: Apache-2.0
"""Builds the spec edits for a container with a GPU, and places its mounts.

A pass over a bundle:

    loaded = spec.load(bundle_fd)
    original = edits.strip(loaded)              # what the engine wrote
    request = injected_gpu.find(original, driver)  # the GPU that the engine had put there
    ...                                         # quota.parse_request, resolve_request, placement
    wanted = container.shared(...)              # or whole(...), or Wanted() for no GPU
    edited = edits.apply(original, wanted, request.taken)
    spec.store(bundle_fd, edited, loaded)
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gpushare.errors import UserError
from gpushare.oci import driver_files, loader
from gpushare.oci import driver_files as drivers
from gpushare.oci.cdi import CdiDeviceNode, CdiEdits, CdiMount
from gpushare.oci.driver_files import CUDA, NVML, DriverFiles
from gpushare.oci.edits import Device, Edits, Hook, Mount
from gpushare.oci.elf import Platform
from gpushare.oci.ldcache import LoaderCacheError
from gpushare.oci.loader import CacheEntry, Filters, MergedCache
from gpushare.oci.rootfs import Rootfs, RootfsError
from gpushare.oci.spec import Spec

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
class OwnFolder:
    """Where a process finds gpushare's files: in `top`, as its interposer library was built."""

    top: str

    @property
    def driver(self) -> str:
        """The folder of the driver behind the library."""
        return f"{self.top}/driver"

    @property
    def tenant(self) -> str:
        """The folder of the tenant's pages."""
        return f"{self.top}/tenant"

    @property
    def libraries(self) -> str:
        """The folder that loaders are led to."""
        return f"{self.top}/lib"


IN_CONTAINER: Final = OwnFolder("/.gpushare")  # GPUSHARE_CONTAINER_DIR of gpushare_abi.h
ON_HOST: Final = OwnFolder("/opt/gpushare")  # GPUSHARE_HOST_DIR


def own_folder(rootfs: Rootfs) -> OwnFolder:
    """Return where a container has gpushare's files: nothing is created in the root of the host."""
    return ON_HOST if rootfs.is_hosts() else IN_CONTAINER


@dataclass(frozen=True)
class HostFiles:
    """The files that are the same for every container of this machine."""

    driver: DriverFiles
    filters: Filters
    platform: Platform


@dataclass(frozen=True)
class ContainerEdits:
    """Edits of a container's spec, and names for its loader's cache.

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
    searched: Sequence[str] = (),
) -> ContainerEdits:
    """Return what a container with a share of `cards` gets; `visible` is the only one it uses.

    Each card is the names that the CDI spec may have for it: `("GPU-4f1c...", "0")`. The filters go
    over every name by which the loader, or a program that knows where to look, finds the driver;
    the real libraries lie where only the filters look. `extra` are the capabilities beyond compute
    and utility that it gets, past the filters; `searched` the folders in which its programs look
    first. CdiError where a card or node is missing.
    """
    driver = host.driver
    edits = driver.cdi.edits_for(cards)
    own = own_folder(rootfs)
    places = loader.Places(rootfs, host.platform, driver, searched)
    libraries = drivers.shared_libraries(driver, extra)
    mounts = (
        *driver_mounts(driver, own),
        *_mounts(places.filters(host.filters)),
        *_mounts(places.libraries(libraries)),
        *(_cdi_mount(mount, rootfs) for mount in drivers.shared_files(edits, driver, extra)),
        *tenant_mounts(tenant_directory, own),
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


def remote(
    engine: DriverFiles,
    platform: Platform,
    env: Mapping[str, str],
    *,
    rootfs: Rootfs,
    searched: Sequence[str],
) -> ContainerEdits:
    """Return what a container with a remote GPU gets: the engine's libraries, and no device.

    The two of the driver's names go over every name by which it is found. The others are those that
    they need: the container gets one that its image does not have.
    """
    places = loader.Places(rootfs, platform, engine, searched)
    others = places.missing([one for one in engine.libraries if not one.is_filtered])
    mounts = _mounts((*places.driver(engine.libraries), *places.libraries(others)))
    names = (CUDA, "libcuda.so", NVML, *(library.soname for library in others))
    return ContainerEdits(Edits(env, mounts), places.cache_entries(names))


def binding_hook(program: str, socket: str, key: str) -> Hook:
    """Return the hook that tells gpushared the container's process.

    `program` is gpushare-hook's absolute path, `socket` the daemon's, `key` the tenant's.
    """
    words = ("gpushare-hook", "createRuntime", "--socket", socket, "--key", key)
    return Hook("createRuntime", program, words, _HOOK_ENV, _HOOK_SECONDS)


def driver_mounts(driver: DriverFiles, own: OwnFolder) -> tuple[Mount, ...]:
    """Return the mounts of the real libraries, where the filters' DT_NEEDED names them."""
    return (
        Mount(driver.cuda.host_path, f"{own.driver}/{CUDA}", _FILE),
        Mount(driver.nvml.host_path, f"{own.driver}/{NVML}", _FILE),
    )


def tenant_mounts(directory: str, own: OwnFolder) -> tuple[Mount, ...]:
    """Return the mounts of a tenant's folder: read-only, and over it `status`, which it writes."""
    return (
        Mount(directory, own.tenant, _TENANT),
        Mount(f"{directory}/{STATUS_NAME}", f"{own.tenant}/{STATUS_NAME}", _STATUS),
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


# --- where in a container gpushare's mounts go, and the mount points for them ---
#
# A low-level runtime creates a missing mount point wherever the path leads: in the image's layer,
# or in the source of a volume, which is a folder of the host. Therefore:
#
# - No mount goes beneath a volume. The volume's content is not looked at, because it may be slow or
#   change. A library moves to /.gpushare/lib, and the loader's cache names it there. Another file
#   is left out, with a note. The exception is a libcuda of the volume that programs find first:
#   another process looks for it, and a filter goes over it.
# - Missing mount points in the layer are created here, through the rootfs's descriptor: the root of
#   a user namespace may not be permitted to.
# - /.gpushare is a tmpfs, so the mount points in it cost next to nothing, and leave one empty
#   folder in the layer. It covers whatever the image has there. No volume is above it: engines
#   mount none at /. They do at /opt, /usr and /run, and systemd mounts its own /run.
# - A name by which any program finds a library (libcuda.so.1) becomes a link to /.gpushare/lib. An
#   empty file in its place would stay in the layer after `docker commit`, and a loader fails on it
#   ("file too short"). A link to nothing is the same to it as no file. Two names of one library
#   lead to one mount.
# - In a root that is the host's own, nothing is created: the files are in /opt/gpushare, and a
#   tmpfs is in /opt/gpushare/lib only. If a mount cannot be there, the container is refused.
#
# The libraries of a share are the same for every container, so gpushared mounts them ahead of
# need, as one tree (daemon/pages/mounts.py). A container gets this tree at /.gpushare, where it
# would otherwise get a tmpfs and single mounts. It keeps those where a file is not the tree's:
# whole cards, libraries past the interposer, an image with a newer cuda-compat.

# As the tree is mounted on the host: a user namespace must not leave one of these out. `ro` here is
# the topmost mount's only, and each mount in the tree is read-only by itself. `rprivate`: what is
# unmounted on the host stays in the container.
_TREE_OPTIONS: Final = ("rbind", "rprivate", "ro", "nosuid", "nodev", "noexec")
_TMPFS: Final = ("nosuid", "nodev", "mode=755", "size=1m")
_LOADED: Final = frozenset({CUDA, "libcuda.so", NVML})  # the names that programs load
_FRESH: Final = frozenset({"tmpfs", "ramfs"})  # empty at each start: nothing of the host is in it
_BINDS: Final = frozenset({"bind", "rbind"})
_SHARED: Final = frozenset({"shared", "rshared"})
_MOST_MOUNTS: Final = 4096


class CoveredPath(UserError):
    """A volume, or a file of the image, is where a container with a GPU needs a mount of ours."""


@dataclass(frozen=True)
class EngineMount:
    """A mount of the engine: its `destination` without links, and what a mount beneath it does.

    `source` is a bind mount's on the host, empty for others.
    """

    destination: str
    is_fresh: bool
    is_shared: bool = False
    source: str = ""

    def holds(self, path: str) -> bool:
        """Whether a mount point at `path` would be created in this mount's file system.

        A mount at the very destination creates nothing, but a shared one passes it to the host.
        """
        if path == self.destination:
            return self.is_shared
        return path.startswith(self.destination.rstrip("/") + "/")


@dataclass(frozen=True)
class PlacedEdits:
    """Edits whose mounts write to no volume, and notes about the mounts that were left out.

    `volume` is the destination of the volume that covers the loader's folder; empty: none does.
    """

    wanted: ContainerEdits
    engines: tuple[EngineMount, ...]
    notes: tuple[str, ...]
    volume: str


def engine_mounts(spec: Spec, rootfs: Rootfs) -> tuple[EngineMount, ...]:
    """Return the engine's mounts in their order: a later one covers an earlier one."""
    entries = spec.entries("mounts")
    if len(entries) > _MOST_MOUNTS:
        raise CoveredPath(f"config.json has over {_MOST_MOUNTS} mounts. Reduce them")
    mounts: list[EngineMount] = []
    for entry in entries:
        mounts.append(_engine_mount(entry, rootfs, mounts))
    return tuple(mounts)


def _engine_mount(
    entry: dict[str, Any], rootfs: Rootfs, earlier: Sequence[EngineMount]
) -> EngineMount:
    destination, options = entry.get("destination"), entry.get("options")
    path = _resolved(rootfs, destination if isinstance(destination, str) else "/", earlier)
    words = {word for word in options if isinstance(word, str)} if isinstance(options, list) else ()
    is_bind, source = bool(_BINDS.intersection(words)), entry.get("source")
    fresh = entry.get("type") in _FRESH and not is_bind
    source = source if is_bind and isinstance(source, str) else ""
    return EngineMount(path, fresh, bool(_SHARED.intersection(words)), source)


def top_mount(mounts: Sequence[EngineMount], path: str) -> EngineMount | None:
    """Return the mount in which a mount point at `path` would be created; None: in the layer."""
    return next((mount for mount in reversed(mounts) if mount.holds(path)), None)


@dataclass(frozen=True)
class VolumeFolder:
    """The folder `path` of a volume, whose `source` is on the host, mounted at `destination`."""

    source: str
    path: str
    destination: str


def volume_folders(
    searched: Sequence[str], engines: Sequence[EngineMount], rootfs: Rootfs
) -> list[VolumeFolder]:
    """Return those of the folders `searched` that are in a volume.

    A mount in a shared one would be the host's as well, so that those are left out.
    """
    folders = []
    for folder in searched:
        path = _resolved(rootfs, folder, engines)
        top = top_mount(engines, f"{path}/{CUDA}")
        if top is not None and top.source and not top.is_shared:
            beneath = path.removeprefix(top.destination.rstrip("/")) or "/"
            folders.append(VolumeFolder(top.source, beneath, top.destination))
    return folders


def single_libraries(
    searched: Sequence[str], engines: Sequence[EngineMount], rootfs: Rootfs
) -> list[str]:
    """Return the driver's names in the folders `searched` that are bind mounts of single files."""
    folders = {_resolved(rootfs, folder, engines) for folder in searched}
    return [
        mount.destination
        for mount in engines
        if mount.source
        and not mount.is_shared
        and posixpath.dirname(mount.destination) in folders
        and loader.is_driver_name(posixpath.basename(mount.destination))
    ]


def covered(filters: Filters, paths: Iterable[str]) -> tuple[Mount, ...]:
    """Return the mounts of the filters over the libraries at `paths`."""
    is_cuda = {path: posixpath.basename(path).startswith("libcuda.") for path in paths}
    return _mounts((filters.cuda if cuda else filters.nvml, path) for path, cuda in is_cuda.items())


def place(wanted: ContainerEdits, spec: Spec, rootfs: Rootfs, driver: DriverFiles) -> PlacedEdits:
    """Return `wanted` with mounts that are in no volume, and create their mount points.

    CoveredPath if a mount cannot be anywhere else.
    """
    engines = engine_mounts(spec, rootfs)
    placing = _Placing(engines, rootfs, driver)
    placing.require_own_folder()
    mounts = [placed for mount in wanted.edits.mounts for placed in placing.place(mount)]
    if placing.needs_tmpfs:
        mounts.insert(0, placing.private_directory())
    volumes = [placing.volume_over(entry.path) for entry in wanted.cache]
    cache = tuple(
        replace(entry, path=f"{placing.own.libraries}/{entry.name}")
        if volume is not None or placing.is_missing_on_host(entry.path)
        else entry
        for entry, volume in zip(wanted.cache, volumes, strict=True)
    )
    placed = replace(wanted, edits=replace(wanted.edits, mounts=tuple(mounts)), cache=cache)
    why = "a volume covers it" if placing.is_layer else "it does not exist on this host"
    notes = tuple(f"not mounted: {path}: {why}" for path in placing.left_out)
    volume = next((volume.destination for volume in volumes if volume is not None), "")
    return PlacedEdits(placed, engines, notes, volume)


def merged_cache(placed: PlacedEdits, rootfs: Rootfs, platform: Platform) -> MergedCache | None:
    """Return the loader's cache with the entries of `placed`; None: it stays as it is.

    A cache in a volume stays as it is: the loader's directories have the libraries too. CoveredPath
    if a volume covers those as well.
    """
    path = _resolved(rootfs, loader.CACHE, placed.engines)
    is_covered = top_mount(placed.engines, path) is not None
    if not placed.volume:
        if is_covered:
            return None
        return loader.merge_cache(rootfs, placed.wanted.cache, platform)
    if is_covered or any(mount.destination == path for mount in placed.engines):
        raise _no_directory(placed.volume, f"a volume covers {loader.CACHE}")
    try:
        return loader.merge_cache(rootfs, placed.wanted.cache, platform, required=True)
    except (RootfsError, LoaderCacheError) as error:
        raise _no_directory(placed.volume, str(error)) from error


def with_cache(
    placed: PlacedEdits, merged: MergedCache | None, rootfs: Rootfs, keep: Path
) -> Edits:
    """Return the edits with the loader's cache, which is replaced or, in `keep`, mounted over."""
    if merged is None:
        return placed.wanted.edits
    try:
        return placed.wanted.with_mount(loader.put_cache(rootfs, merged, keep))
    except RootfsError as error:
        if not placed.volume:
            raise
        raise _no_directory(placed.volume, str(error)) from error


def _no_directory(volume: str, why: str) -> CoveredPath:
    return CoveredPath(
        f"the volume at {volume} covers the loader's directory, and the loader cannot use another "
        f"one: {why}. Mount the volume at another path"
    )


def _covered(volume: EngineMount, path: str) -> CoveredPath:
    return CoveredPath(
        f"the volume at {volume.destination} covers {path}, which a container with a GPU needs. "
        "Mount the volume at another path"
    )


class _Placing:
    """Places the mounts of one container. `private` are the names in its own folder's `lib`."""

    def __init__(self, mounts: Sequence[EngineMount], rootfs: Rootfs, driver: DriverFiles) -> None:
        self._rootfs = rootfs
        self.own = own_folder(rootfs)
        # A layer that is the host's own root gets no file of ours.
        self.is_layer = self.own != ON_HOST
        self._tmpfs = self.own.top if self.is_layer else self.own.libraries
        self._fixed = (f"{self.own.driver}/", f"{self.own.tenant}/")  # where the library looks
        # Ours is the last one there: neither the image's files in it nor a volume's are seen.
        self._mounts = (*mounts, EngineMount(self._tmpfs, is_fresh=True))
        self._sonames = {*_LOADED, *(library.soname for library in driver.libraries)}
        self._aliases = {name for library in driver.libraries for name in library.names}
        self.private: set[str] = set()
        self._private_names: dict[str, str] = {}  # by source
        self._private = self._resolved(self.own.libraries)
        self.needs_tmpfs = False
        self.left_out: list[str] = []

    def volume_over(self, path: str) -> EngineMount | None:
        """Return the volume in which a mount point at `path` would be created; None: no volume."""
        top = top_mount(self._mounts, self._resolved(path))
        return None if top is None or top.is_fresh else top

    def _resolved(self, path: str) -> str:
        return _resolved(self._rootfs, path, self._mounts)

    def private_directory(self) -> Mount:
        """Return the tmpfs that the private mounts are in; CoveredPath if a volume is above it."""
        volume = self.volume_over(self._tmpfs)
        if volume is not None:
            raise _covered(volume, self._tmpfs)
        self._make_directory(self._tmpfs)
        return Mount("tmpfs", self._tmpfs, _TMPFS, "tmpfs")

    def require_own_folder(self) -> None:
        """See that our folder can be mounted in the layer; CoveredPath names what is there.

        A folder of the image there is covered, whatever is in it; a volume would be lost to the
        container.
        """
        if not self.is_layer:
            return
        top = self.own.top
        for mount in self._mounts[:-1]:
            if f"{mount.destination}/".startswith(f"{top}/"):
                raise _covered(mount, top)
        try:
            is_free = self._rootfs.resolve(top) == top and (
                self._rootfs.is_directory(top) or not self._rootfs.exists(top)
            )
        except RootfsError:
            is_free = False  # a link that leads to itself
        if not is_free:
            raise CoveredPath(
                f"the image has a file or a link at {top}, where a container with a GPU has a "
                "folder of gpushare. Remove it from the image"
            )

    def place(self, mount: Mount) -> Iterator[Mount]:
        """Yield `mount` where it can be, or nothing."""
        path = self._resolved(mount.destination)
        name = posixpath.basename(mount.destination)
        top = top_mount(self._mounts, path)
        is_fixed = f"{mount.destination}/".startswith(self._fixed)
        if mount.destination.startswith(f"{self.own.tenant}/"):
            yield mount  # it is in our own mount
        elif top is not None and not top.is_fresh:
            if is_fixed:
                raise _covered(top, mount.destination)
            yield from self._beside(mount, name)
        elif is_fixed and self.is_layer:
            self.needs_tmpfs = True
            yield mount
        elif path.startswith(f"{self._private}/"):
            yield from self._privately(mount, path.removeprefix(f"{self._private}/"))
        elif top is None and not is_fixed and self.is_missing_on_host(path):
            yield from self._beside(mount, name)
        elif top is not None or not self.is_layer or self._rootfs.exists(path):
            yield mount
        elif not is_fixed and self._is_link(name) and self._link(path, self._known(mount, name)):
            yield from self._privately(mount, self._known(mount, name))
        else:
            self._make_point(mount, path)
            yield mount

    def is_missing_on_host(self, path: str) -> bool:
        """Whether the root is the host's own, and a mount point would have to be created in it."""
        return not self.is_layer and not self._rootfs.exists(path)

    def _beside(self, mount: Mount, name: str) -> Iterator[Mount]:
        """Place a mount that cannot be at its destination."""
        if name in self._sonames:
            yield from self._privately(mount, name)
        elif name not in self._aliases:
            self.left_out.append(mount.destination)

    def _privately(self, mount: Mount, name: str) -> Iterator[Mount]:
        if name not in self.private:
            self.private.add(name)
            self._private_names.setdefault(mount.source, name)
            self.needs_tmpfs = True
            yield replace(mount, destination=f"{self.own.libraries}/{name}")

    def _known(self, mount: Mount, name: str) -> str:
        """Return the private name of a mount's source: libcuda.so is libcuda.so.1."""
        return self._private_names.get(mount.source, name)

    def _is_link(self, name: str) -> bool:
        """Whether a link can stand for a missing library of that name.

        Other tools mount the driver at its own files' names, and crun mounts over no link.
        """
        return name in _LOADED or (name in self._sonames and name not in self._aliases)

    def _link(self, path: str, name: str) -> bool:
        try:
            self._rootfs.make_link(path, f"{self.own.libraries}/{name}")
        except OSError:
            return False
        return True

    def _make_point(self, mount: Mount, path: str) -> None:
        if Path(mount.source).is_dir():
            self._make_directory(path)
        else:
            with contextlib.suppress(OSError):  # the low-level runtime reports it, or succeeds
                self._rootfs.make_file(path)

    def _make_directory(self, path: str) -> None:
        resolved = self._resolved(path)
        if self.is_layer and top_mount(self._mounts, resolved) is None:
            with contextlib.suppress(OSError):
                self._rootfs.make_directory(resolved)


def _resolved(rootfs: Rootfs, path: str, mounts: Sequence[EngineMount]) -> str:
    """Return `path` without the links of the layer; those that `mounts` cover do not count."""
    literal = posixpath.normpath(f"/{path.lstrip('/')}")
    try:
        real = rootfs.resolve(path)
        if real == literal:
            return real
        real = ""
        names = [name for name in path.split("/") if name]
        for number, name in enumerate(names):
            if top_mount(mounts, f"{real}/{name}") is not None:
                return posixpath.normpath("/".join((real, *names[number:])))
            real = rootfs.resolve(f"{real}/{name}").rstrip("/")
    except RootfsError:
        return literal
    return real or "/"


@dataclass(frozen=True)
class LibraryTree:
    """A tree that is mounted at `path` on the host; `files` are its sources, by destination."""

    path: str
    files: Mapping[str, str]


def tree_files(driver: DriverFiles, filters: Filters) -> dict[str, str]:
    """Return the sources of the libraries of every share of `driver`, by destination."""
    sources = {mount.destination: mount.source for mount in driver_mounts(driver, IN_CONTAINER)}
    private = IN_CONTAINER.libraries
    sources[f"{private}/{CUDA}"] = filters.cuda
    sources[f"{private}/{NVML}"] = filters.nvml
    for library in drivers.shared_libraries(driver, frozenset()):
        sources[f"{private}/{library.soname}"] = library.host_path
    return sources


def with_tree(placed: PlacedEdits, tree: LibraryTree) -> PlacedEdits:
    """Return `placed` with `tree` in place of its mounts in it; as it is where they differ."""
    edits, top = placed.wanted.edits, IN_CONTAINER.top
    if not edits.mounts or (edits.mounts[0].type, edits.mounts[0].destination) != ("tmpfs", top):
        return placed
    others = edits.mounts[1:]
    libraries = [mount for mount in others if _is_in_tree(mount)]
    if any(tree.files.get(mount.destination) != mount.source for mount in libraries):
        return placed
    mounts = (
        Mount(tree.path, top, _TREE_OPTIONS),
        *(mount for mount in others if mount not in libraries),
    )
    return replace(placed, wanted=replace(placed.wanted, edits=replace(edits, mounts=mounts)))


def _is_in_tree(mount: Mount) -> bool:
    is_tenant = f"{mount.destination}/".startswith(f"{IN_CONTAINER.tenant}/")
    return mount.destination.startswith(f"{IN_CONTAINER.top}/") and not is_tenant
