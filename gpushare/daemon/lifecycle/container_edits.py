# SPDX-License-Identifier: Apache-2.0
"""What is put into a container's spec, and into its image's layer.

What was worked out for an image is kept (oci/image_view.py) if nothing had to be noted of the
container, it has no driver of its own, and no volume is in the way: that is nearly every container.

`numa: bind` keeps a container's CPUs and memory to the NUMA nodes of its cards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.lifecycle import driver_files
from gpushare.daemon.mps.variables import PIPE_ENV, PIPES
from gpushare.daemon.node import LoadedDriver
from gpushare.daemon.placement.model import NO_NODE
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.host.numa import Bound, bind
from gpushare.oci import container, ldcache, loader
from gpushare.oci.container import OURS, LibraryTree
from gpushare.oci.driver_files import CUDA, NVML
from gpushare.oci.edits import Edits, Hook, Mount
from gpushare.oci.image_view import ImageView, PreparedImage
from gpushare.oci.spec import Spec

# Each container has its own, and no program finds the driver by it.
_HOSTNAME: Final = "HOSTNAME="


def edits_of(
    original: Spec,
    image: ImageView,
    record: TenantRecord,
    state: DaemonState,
    check: Callable[[], None],
) -> Edits:
    """Return the edits for the container of `record`; its mount points are made, and its cache.

    IncompatibleImage, CoveredPath, CdiError, OSError: it cannot have its cards.
    """
    driver = state.node.loaded()
    libraries = state.node.libraries
    program = str(libraries.parent / "bin" / "gpushare-hook")
    hook = container.binding_hook(program, str(state.node.config.socket), record.key)
    cards = _cards(record, driver, moves=state.node.config.evict.moves)
    tenant = _TenantParts(
        record.shared,
        cards,
        () if record.cgroup else (hook,),  # else its launcher binds it
        str(state.mounts.path(record.key)),
        libraries,
        mount_libraries(state) if _can_have_tree(original, record) else None,
        cards[0][0] if len(cards) > len(record.allocations) else "",
    )
    made_under = (driver.files, driver.cards, driver.nvml, state.node.config)
    request = _request(original, image, record, tenant, driver)
    if request is not None:
        known = state.prepared_images.find(made_under, request, image)
        if known is not None:
            with suppress(OSError):  # it is not as it was any more: looked at again
                return _as_prepared(known, image, tenant, state)
    chosen = driver_files.choose_files(original, image, record, state, check)
    wanted = _wanted(chosen, image, tenant, state)
    placed = container.place(wanted, original, image, chosen.files)
    if tenant.tree is not None:
        placed = container.with_tree(placed, tenant.tree)
    driver_files.keep_notes(record, placed.notes, state)
    cache = container.merged_cache(placed, image, state.node.platform)
    seen = image.seen()
    is_plain = chosen.is_plain and not placed.notes and not placed.volume
    if request is not None and seen is not None and is_plain:
        prepared = PreparedImage(seen, image.created, placed.wanted, cache, tenant.directory)
        state.prepared_images.keep(made_under, request, prepared)
    return container.with_cache(placed, cache, image, _kept_caches(state))


@dataclass(frozen=True)
class _TenantParts:
    """What a container gets that is not its image's. `cards` are their names in the CDI spec.

    `visible` is the UUID of its card if it has the nodes of others, to which it may be moved.
    """

    shared: bool
    cards: list[tuple[str, ...]]
    hooks: tuple[Hook, ...]
    directory: str
    libraries: Path
    tree: LibraryTree | None
    visible: str = ""


def _filters(libraries: Path) -> container.Filters:
    return container.Filters(str(libraries / CUDA), str(libraries / NVML))


def mount_libraries(state: DaemonState) -> LibraryTree | None:
    """Return the libraries of every share, mounted as one tree; None: they cannot be."""
    files = container.tree_files(state.node.loaded().files, _filters(state.node.libraries))
    try:
        return LibraryTree(str(state.mounts.library_tree(OURS, files)), files)
    except OSError as error:
        log("library-tree-failed", "warning", error=str(error))
        return None


def _can_have_tree(original: Spec, record: TenantRecord) -> bool:
    """Whether the container can have the tree of libraries; else they are mounted singly.

    A tree cannot have the SELinux label of one container. In a user namespace, crun (1.8.1) binds
    the topmost mount only, and the names of the libraries would be empty files. With CAP_SYS_ADMIN,
    a container could make the file system of the tree writable, for all containers that have it.
    """
    namespaces = original.entries("linux", "namespaces")
    has_users = any(namespace.get("type") == "user" for namespace in namespaces)
    is_alike = not original.mount_label and not has_users and not original.may_mount()
    return record.shared and is_alike


def _wanted(
    chosen: driver_files.DriverFileChoice,
    image: ImageView,
    tenant: _TenantParts,
    state: DaemonState,
) -> container.ContainerEdits:
    host = container.HostFiles(chosen.files, _filters(tenant.libraries), state.node.platform)
    if not tenant.shared:
        return container.whole(
            host, tenant.cards, rootfs=image, hooks=tenant.hooks, wanted=chosen.wanted
        )
    return container.shared(
        host,
        tenant.cards,
        rootfs=image,
        hooks=tenant.hooks,
        tenant_directory=tenant.directory,
        extra=chosen.extra,
        visible=tenant.visible,
    )


def _as_prepared(
    known: PreparedImage, image: ImageView, tenant: _TenantParts, state: DaemonState
) -> Edits:
    edits = known.edits_of(tenant.directory, tenant.hooks)
    image.create(known.created)
    if known.cache is None:
        return edits
    mount = loader.put_cache(image, known.cache, _kept_caches(state))
    return container.ContainerEdits(edits).with_mount(mount)


def _request(
    original: Spec,
    image: ImageView,
    record: TenantRecord,
    tenant: _TenantParts,
    driver: LoadedDriver,
) -> Hashable:
    """Return all that decides, beside the image, what the container gets; None: nothing is kept.

    With the bytes of the loader's cache, by which two images have two entries.
    """
    if image.is_hosts():
        return None
    try:
        cache = image.read(loader.CACHE, ldcache.MAX_BYTES)
    except OSError:
        return None
    if cache is not None and len(cache) > ldcache.KEPT_BYTES:
        return None
    process = original.at("process") or {}
    parts = (
        [entry for entry in original.env if not entry.startswith(_HOSTNAME)],
        [process.get(name) for name in ("args", "cwd")],
        [[mount.get(name) for name in _OF_A_MOUNT] for mount in original.entries("mounts")],
        [tenant.shared, record.namespace, str(tenant.libraries), driver.files.served()],
        [tenant.cards, tenant.tree and tenant.tree.path],
    )
    # A digest: an environment may be large, and have secrets in it.
    return hashlib.sha256(json.dumps(parts).encode()).digest(), cache


_OF_A_MOUNT: Final = ("destination", "type", "options")


def _cards(
    record: TenantRecord, driver: LoadedDriver, *, moves: bool = False
) -> list[tuple[str, ...]]:
    """Return the names of a container's cards; if it `moves`, also of those that it may go to.

    The interposer library hides the others, and the audit sees a program that bypasses it.
    """
    own = [
        card
        for allocation in record.allocations
        if (card := driver.card(allocation.uuid)) is not None
    ]
    others = [
        card
        for card in driver.cards
        if moves and record.shared and len(own) == 1 and card not in own
        if card.instance is None and not card.is_divided
        if any(card.model == one.model and one.instance is None for one in own)
    ]
    return [
        (card.uuid, *(card.instance.names if card.instance else (str(card.index),)))
        for card in (*own, *others)
    ]


def _kept_caches(state: DaemonState) -> Path:
    return state.node.config.state_dir / "ldcache"


BIND: Final = "bind"


def numa_binding(original: Spec, record: TenantRecord, state: DaemonState) -> Bound:
    """Return the CPUs and memory nodes that a container keeps; problems are noted.

    Where the node of one of its cards is not known, all of it: its CPUs may be anywhere.
    """
    driver = state.node.loaded()
    nodes = {
        allocation.uuid: driver.links.node(allocation.uuid) for allocation in record.allocations
    }
    unknown = [uuid for uuid, number in nodes.items() if number == NO_NODE]
    if unknown:
        cards = ", ".join(
            str(card.index) for uuid in unknown if (card := driver.card(uuid)) is not None
        )
        note = f"numa: bind: the NUMA node of card {cards} is not known: left as is"
        found = Bound(notes=(note,))
    else:
        path = original.at("linux", "cgroupsPath")
        allowed = state.node.numa.allowed(path if isinstance(path, str) else "")
        found = bind(original, state.node.numa.of(nodes.values()), allowed)
    if found.notes:
        state.in_start(lambda: _note_binding(record, found.notes, state))
        for note in found.notes:
            log("tenant-request-adjusted", tenant=record.key, name=record.title, note=note)
    return found


def _note_binding(record: TenantRecord, notes: Sequence[str], state: DaemonState) -> None:
    known = state.ledger.require(record)
    state.ledger.describe(record.key, notes, known.uninterposed, known.compat)


# --- what a container on a card in MPS mode gets beside its share: the way to the server ---
#
# The interposer library sets the variables before the driver reads them, from a file beside the
# tenant's pages: what the container's own environment says only lowers its limits.

#: The control daemon, as the host's root, writes to files in it: a container must not replace one.
#: A client connects to a socket in it without a writable mount (unix_find_bsd, net/unix/af_unix.c).
_PIPE_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev", "noexec")
_SHARED_OPTIONS: Final = ("bind", "rw", "nosuid", "nodev", "noexec")
_NOTHING: Final = "/dev/null"
_NOTHING_OPTIONS: Final = ("bind", "ro", "nosuid", "noexec")
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - fixed: where CUDA looks for cuda.shm.*


def with_server(edits: Edits, original: Spec, record: TenantRecord, state: DaemonState) -> Edits:
    """Return `edits` with what makes the container of `record` a client of its card's server.

    MpsRefused: it cannot be one.
    """
    grant = state.node.mps.admit(record.key, host_uid(original))
    mounts = [Mount(grant.folder, PIPES, _PIPE_OPTIONS)]
    # A device without a use: no socket is behind it.
    mounts += [Mount(_NOTHING, f"{PIPES}/{name}", _NOTHING_OPTIONS) for name in grant.hidden]
    if grant.shared_memory:
        mounts.append(Mount(grant.shared_memory, _SHARED_MEMORY, _SHARED_OPTIONS))
    return replace(
        edits,
        mounts=(*edits.mounts, *mounts),
        # For programs that reach the driver in another way: they are to find the server too.
        env={**edits.env, PIPE_ENV: PIPES},
    )


def host_uid(original: Spec) -> int:
    """Return the host's uid of a container's first process: that is what the MPS server sees."""
    user = original.at("process", "user") or {}
    uid = user.get("uid", 0) if isinstance(user, dict) else 0
    for mapping in original.entries("linux", "uidMappings"):
        first, size = mapping.get("containerID", 0), mapping.get("size", 0)
        if first <= uid < first + size:
            return int(mapping.get("hostID", 0)) + int(uid) - int(first)
    return int(uid)
