# SPDX-License-Identifier: Apache-2.0
"""The edits of a container's spec, and of its image's layer.

The result for an image is kept (oci/image_view.py) if nothing had to be noted of the
container, it has no driver of its own, and no volume is in the way: that is nearly every container.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from gpushare import abi, compatibility
from gpushare.compatibility import image as images
from gpushare.compatibility import rules
from gpushare.compatibility.rules import parse_version, strip_zeros
from gpushare.config import Config
from gpushare.daemon.core.log import log
from gpushare.daemon.lifecycle.volume_libraries import find_libraries
from gpushare.daemon.limits import AUDITED, INTERPOSER
from gpushare.daemon.mps.supervisor import MpsSupervisor
from gpushare.daemon.node import PIPE_ENV, LoadedDriver, Node
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.placement.model import Card
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.host.mounts import SHARED_MEMORY
from gpushare.oci import (
    container,
    cuda_compat,
    driver_files,
    elf,
    ldcache,
    loader,
    search_path,
)
from gpushare.oci.cdi import CdiError
from gpushare.oci.container import IN_CONTAINER, LibraryTree
from gpushare.oci.cuda_compat import Compat, CompatError
from gpushare.oci.driver_files import CUDA, NVML, DriverCapabilities, DriverFiles, with_compat
from gpushare.oci.edits import Edits, Mount
from gpushare.oci.image_view import ImageView, PreparedImage
from gpushare.oci.rootfs import Rootfs
from gpushare.oci.spec import Spec

# Each container has its own, and no program finds the driver by it.
_HOSTNAME: Final = "HOSTNAME="
#: What engines mount by themselves: no folder of it is searched for libcuda.
_OF_ENGINES: Final = frozenset(
    f"""
    /proc /dev /dev/pts {SHARED_MEMORY} /dev/mqueue /dev/termination-log /sys /sys/fs/cgroup /run
    /run/.containerenv /run/secrets /etc/hosts /etc/hostname /etc/resolv.conf
    /var/run/secrets/kubernetes.io/serviceaccount
    """.split()
)
_NO_ANSWER: Final = (
    "not looked at: a volume does not answer. A libcuda in it would be used as it is"
)


class ContainerEditor:
    """The edits of the container of `record`, whose spec is `original`.

    It reads the image, so it is never the decide thread's; `check` ends it by an exception.
    """

    def __init__(
        self,
        original: Spec,
        image: ImageView,
        record: TenantRecord,
        state: DaemonState,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._original, self._image, self._record = original, image, record
        self._state, self._node, self._check = state, state.node, check
        self._driver, self._libraries = state.node.loaded(), state.node.libraries
        cards = (self._driver.card(allocation.uuid) for allocation in record.allocations)
        self._own = [card for card in cards if card is not None]
        self._names = self._card_names()  # of its cards, in the CDI spec
        program = str(self._libraries.parent / "bin" / "gpushare-hook")
        hook = container.binding_hook(program, str(self._node.config.socket), record.key)
        self._hooks = () if record.cgroup else (hook,)  # else its launcher binds it
        is_hosts = image.is_hosts()
        self._filters = _filters(state.node.host_libraries if is_hosts else self._libraries)
        self._directory = str(state.mounts.path(record.key))
        self._caches = self._node.config.state_dir / "ldcache"

    def edits(self) -> Edits:
        """Return the edits; the container's mount points are made, and its loader's cache.

        IncompatibleImage, CoveredPath, CdiError, OSError: it cannot have its cards.
        """
        edits = self._edits_of_image()
        if not self._record.shared:
            return edits
        covered, notes = cover_volumes(
            edits, self._original, self._image, self._filters, lambda: self._searched
        )
        self._keep(notes)
        return covered

    @cached_property
    def _searched(self) -> tuple[str, ...]:
        return searched(self._original, self._image)

    def _edits_of_image(self) -> Edits:
        node, image, prepared = self._node, self._image, self._state.prepared_images
        tree = mount_libraries(node, self._state.mounts) if self._can_have_tree() else None
        made_under = (self._driver.files, self._driver.cards, self._driver.nvml, node.config)
        request = self._prepared_by(tree)
        known = None if request is None else prepared.find(made_under, request, image)
        if known is not None:
            with suppress(OSError):  # it is not as it was any more: looked at again
                return self._as_prepared(known)
        chosen = self.choose_files()
        placed = container.place(self._wanted(chosen), self._original, image, chosen.files)
        if tree is not None:
            placed = container.with_tree(placed, tree)
        self._keep(placed.notes)
        cache = container.merged_cache(placed, image, node.platform)
        inputs = image.seen()
        is_plain = chosen.is_plain and not placed.notes and not placed.volume
        if request is not None and inputs is not None and is_plain:
            made = PreparedImage(inputs, image.created, placed.wanted, cache, self._directory)
            prepared.keep(made_under, request, made)
        return container.with_cache(placed, cache, image, self._caches)

    def _can_have_tree(self) -> bool:
        """Whether the container can have the tree of libraries; else they are mounted singly.

        A tree cannot have the SELinux label of one container. In a user namespace, crun (1.8.1)
        binds the topmost mount only, and the names of the libraries would be empty files. With
        CAP_SYS_ADMIN, a container could make the file system of the tree writable, for all
        containers that have it.
        """
        original = self._original
        has_users = bool(original.namespaces("user"))
        is_alike = not original.mount_label and not has_users and not original.may_mount()
        return self._record.shared and is_alike

    def _wanted(self, chosen: DriverFileChoice) -> container.ContainerEdits:
        host = container.HostFiles(chosen.files, self._filters, self._node.platform)
        image, names, hooks = self._image, self._names, self._hooks
        if not self._record.shared:
            return container.whole(host, names, rootfs=image, hooks=hooks, wanted=chosen.wanted)
        return container.shared(
            host,
            names,
            rootfs=image,
            hooks=hooks,
            tenant_directory=self._directory,
            extra=chosen.extra,
            # The UUID of its card, if it has the nodes of others, to which it may move.
            visible=names[0][0] if len(names) > len(self._record.allocations) else "",
            searched=self._searched,
        )

    def _as_prepared(self, known: PreparedImage) -> Edits:
        edits = known.edits_of(self._directory, self._hooks)
        self._image.create(known.created)
        if known.cache is None:
            return edits
        mount = loader.put_cache(self._image, known.cache, self._caches)
        return container.ContainerEdits(edits).with_mount(mount)

    def _prepared_by(self, tree: LibraryTree | None) -> Hashable:
        """Return all that decides, beside the image, what the container gets; None: keep nothing.

        With the bytes of the loader's cache, by which two images have two entries.
        """
        if self._image.is_hosts():
            return None
        try:
            cache = self._image.read(loader.CACHE, ldcache.MAX_BYTES)
        except OSError:
            return None
        if cache is not None and len(cache) > ldcache.KEPT_BYTES:
            return None
        original, record = self._original, self._record
        process = original.at("process") or {}
        served = self._driver.files.served()
        parts = (
            [entry for entry in original.env if not entry.startswith(_HOSTNAME)],
            [process.get(name) for name in ("args", "cwd")],
            [[mount.get(name) for name in _OF_A_MOUNT] for mount in original.entries("mounts")],
            [record.shared, record.namespace, str(self._libraries), served],
            [self._names, tree and tree.path],
        )
        # A digest: an environment may be large, and have secrets in it.
        return hashlib.sha256(json.dumps(parts).encode()).digest(), cache

    def _card_names(self) -> list[tuple[str, ...]]:
        """Return the names of the container's cards; also of those that it may be moved to.

        The interposer library hides the others, and the audit sees a program that bypasses it.
        """
        own, moves = self._own, self._node.config.evict.moves and self._record.shared
        others = [
            card
            for card in self._driver.cards
            if moves and len(own) == 1 and card not in own
            if card.instance is None and not card.is_divided
            if card.model == own[0].model and own[0].instance is None
        ]
        return [
            (card.uuid, *(card.instance.names if card.instance else (str(card.index),)))
            for card in (*own, *others)
        ]

    def with_server(self, edits: Edits, servers: MpsSupervisor) -> Edits:
        """Return `edits` with what makes the container a client of its card's MPS server.

        The interposer library sets the variables before the driver reads them, from a file beside
        the tenant's pages: what the container's own environment says only lowers its limits.

        MpsRefused: it cannot be one.
        """
        grant = servers.admit(self._record.key, host_uid(self._original))
        self._keep((grant.note,) if grant.note else ())
        pipes = f"{container.own_folder(self._image).tenant}/{abi.PIPES_NAME}"
        mounts = (
            Mount(grant.folder, pipes, _PIPE_OPTIONS),
            Mount(grant.shared_memory, SHARED_MEMORY, _SHARED_OPTIONS),
        )
        # For programs that reach the driver in another way: they are to find the server too.
        env = {**edits.env, PIPE_ENV: pipes}
        return replace(edits, mounts=(*edits.mounts, *mounts), env=env)

    # The driver files that the container gets, and whether its image fits driver and cards. They
    # depend on NVIDIA_DRIVER_CAPABILITIES, on the cuda-compat package of the image and on the
    # program that the container starts. Nothing that was requested is dropped silently: it is
    # noted, and `inspect`, `ps` and the log show it. `compatibility` of the configuration, or of
    # the namespace, decides what happens to an image that does not fit.

    def choose_files(self) -> DriverFileChoice:
        """Return the driver files of the container, and keep the notes in the ledger.

        IncompatibleImage if the image is incompatible with this node and the policy refuses it.
        """
        requested = driver_files.requested_capabilities(self._original.variables)
        notes = list(self._of_capabilities(requested))
        extra = frozenset[str]()
        if self._record.shared:
            notes += self._of_program()
            if self._node.config.allow_uninterposed:
                extra = frozenset(requested.uninterposed)
        package = cuda_compat.find(self._image)
        notes += self._compatibility_notes(package)
        files, copy, compat_notes = self._of_compat(package)
        notes += compat_notes
        self._keep(notes, extra, copy)
        return DriverFileChoice(files, requested.wanted, extra, not (notes or extra or copy))

    def _compatibility_notes(self, package: Compat | None) -> list[str]:
        """Return what is noted of the image; IncompatibleImage where it is refused.

        `package` is its own libcuda, if it has one.
        """
        record, policy = self._record, self._node.config.terms_of(self._record.namespace).compat
        if policy == IGNORE:
            return []
        machine = machine_facts(self._own, self._driver, shared=record.shared)
        image = image_facts(self._original, self._image, package, self._node)
        found = compatibility.evaluate_image(image, machine)  # the gravest first
        ill = [one for one in found if one.level != "ok" and one.rule != rules.PACKAGE]
        for finding in ill:
            log(
                "tenant-image-incompatible",
                "warning",
                **record.named,
                rule=finding.rule,
                what=finding.what,
                refused=policy == REFUSE and finding.level == "refuse",
            )
        if policy == REFUSE and ill and ill[0].level == "refuse":
            where = f"compatibility: {REFUSE} of gpushare.yaml"
            raise IncompatibleImage(
                f"the image is incompatible with this node: {ill[0]}. The node's policy refuses it "
                f"({where}); for details, run gpushare compat"
            )
        return [str(finding) for finding in ill[:_MOST_NOTES]]

    def _keep(self, notes: Sequence[str], extra: Collection[str] = (), copy: str = "") -> None:
        """Add to what is recorded of the tenant; `extra` bypasses the interposer library."""
        ledger, record = self._state.ledger, self._record

        def keep() -> None:
            known = ledger.require(record)
            is_audited = extra and known.isolation == INTERPOSER
            ledger.change(
                record.key,
                notes=(*known.notes, *notes),
                uninterposed=tuple(sorted({*known.uninterposed, *extra})),
                compat=copy or known.compat,
                isolation=AUDITED if is_audited else known.isolation,
            )
            for note in notes:
                log("tenant-request-adjusted", **record.named, note=note)

        if notes or extra or copy:
            self._state.in_start(keep)

    def _of_capabilities(self, requested: DriverCapabilities) -> Iterator[str]:
        if requested.unknown:
            words = ", ".join(requested.unknown)
            yield f"{driver_files.VARIABLE}: no such capability: {words} (there are {_KNOWN})"
        past = ", ".join(requested.uninterposed)
        if not past or not self._record.shared:
            return
        if self._node.config.allow_uninterposed:
            how = "bypasses the interposer library; the audit charges its memory afterwards"
            yield f"{past}: {how}"
        else:
            yield (
                f"not given: {past} ({driver_files.VARIABLE}); a share has compute and utility. "
                "For more, request a whole card, or set allow_bypass_capabilities in gpushare.yaml"
            )

    def _of_program(self) -> Iterator[str]:
        directory = self._original.at("process", "cwd")
        directory = directory if isinstance(directory, str) else "/"
        process = (_args(self._original), self._original.variables, directory)
        program = elf.entry_program(self._image, process, self._node.platform)
        if program.kind == "musl":
            yield (
                f"{program.path} uses musl, and the driver requires glibc: CUDA cannot be "
                f"loaded in it; {_UNMEDIATED}"
            )
        elif program.kind == "static":
            yield (
                f"{program.path} is statically linked: no library can be loaded into it, including "
                f"the interposer library; {_UNMEDIATED}. Programs that it starts are mediated if "
                "they are not static"
            )
        elif program.kind == "foreign":
            yield (
                f"{program.path} is built for another architecture or for 32 bits: this machine "
                f"has no driver for it; {_UNMEDIATED}"
            )

    def _of_compat(self, package: Compat | None) -> tuple[DriverFiles, str, list[str]]:
        """Return the driver with a newer libcuda of the image's, its copy's name, and notes."""
        files, driver_version = self._driver.files, self._driver.nvml.driver_version
        if package is None or package.version <= cuda_compat.version(driver_version):
            return files, "", []
        subject = f"cuda-compat {package.text} of the image"
        than = f"is newer than the driver {driver_version}"
        other = next((card.model for card in self._own if not card.datacenter), "")
        if other:
            why = f"it requires data center cards, and {other} is not one"
            return files, "", [f"{subject} {than} and is not used: {why}"]
        until = time.monotonic() + _COPY_SECONDS

        def check_time() -> None:
            self._check()
            if time.monotonic() > until:
                raise CompatError(f"takes longer than {_COPY_SECONDS:g} s to copy")

        try:
            used, store = _used(self._state.ledger), compat_folder(self._node.config)
            folder = cuda_compat.keep(self._image, package, store, used, check_time)
            newer = with_compat(files, folder)
        except (CompatError, CdiError, OSError) as error:
            return files, "", [f"{subject} {than} and is not used: it {error}"]
        log("cuda-compat-selected", **self._record.named, version=package.text, copy=folder.name)
        return newer, folder.name, [f"{subject} {than}: its libcuda is the container's"]


_OF_A_MOUNT: Final = ("destination", "type", "options")
#: A client connects to the socket without a writable mount (unix_find_bsd, net/unix/af_unix.c).
_PIPE_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev", "noexec")
_SHARED_OPTIONS: Final = ("bind", "rw", "nosuid", "nodev", "noexec")
IGNORE: Final = "ignore"
REFUSE: Final = "refuse"
_MOST_NOTES: Final = 6
_COPY_SECONDS: Final = 6.0  # of a launcher's patience of ten
_KNOWN: Final = ", ".join((*driver_files.ALL, "all"))
_UNMEDIATED: Final = (
    "calls that reach the card without libcuda are not refused, and the audit charges their memory"
)


class IncompatibleImage(UserError):
    """The image does not fit, and the node's policy refuses such a container."""


@dataclass(frozen=True)
class DriverFileChoice:
    """The driver files of a container, and its driver capabilities."""

    files: DriverFiles
    wanted: frozenset[str]  # the capabilities of whole cards
    extra: frozenset[str]  # those of a share, past the interposer library
    is_plain: bool = False  # nothing is noted of the container, and it has no driver of its own


def searched(original: Spec, rootfs: Rootfs) -> tuple[str, ...]:
    """Return the folders in which the programs of a container look for libcuda first."""
    process = original.at("process") or {}
    directory = process.get("cwd") or "/"
    return search_path.searched(original.variables, str(directory), rootfs)


def cover_volumes(
    edits: Edits,
    original: Spec,
    rootfs: Rootfs,
    filters: loader.Filters,
    searched_first: Callable[[], Sequence[str]],
) -> tuple[Edits, tuple[str, ...]]:
    """Return `edits` with `filters` over the libraries of volumes that programs find, and notes."""
    bound = {mount.get("destination") for mount in original.entries("mounts")}
    if bound <= _OF_ENGINES:
        return edits, ()
    notes: tuple[str, ...] = ()
    engines = container.engine_mounts(original, rootfs)
    directories = searched_first()
    paths = container.single_libraries(directories, engines, rootfs)
    folders = container.volume_folders(directories, engines, rootfs)
    if folders:
        found = find_libraries([(folder.source, folder.path) for folder in folders])
        if found is None:
            notes = (_NO_ANSWER,)
        paths += [f"{folders[number].destination}{path}" for number, path in found or ()]
    mounts = container.covered(filters, dict.fromkeys(paths))
    return replace(edits, mounts=(*edits.mounts, *mounts)), notes


def _filters(libraries: Path) -> loader.Filters:
    return loader.Filters(str(libraries / CUDA), str(libraries / NVML))


def mount_libraries(node: Node, mounts: TenantMounts) -> LibraryTree | None:
    """Return the libraries of every share, mounted as one tree; None: they cannot be."""
    files = container.tree_files(node.loaded().files, _filters(node.libraries))
    try:
        return LibraryTree(str(mounts.library_tree(IN_CONTAINER.top, files)), files)
    except OSError as error:
        log("library-tree-failed", "warning", error=str(error))
        return None


def renew_tree(node: Node, ledger: Ledger, mounts: TenantMounts) -> None:
    """Mount the tree of libraries ahead of need, and unmount those of earlier libraries.

    Not while a container that has one of them may be starting.
    """
    if node.driver is not None:
        mount_libraries(node, mounts)
    try:
        stale = mounts.stale_trees()
        if stale and not any(record.state == "reserved" for record in ledger.entries.values()):
            mounts.drop_trees(stale)
    except OSError as error:
        log("library-tree-failed", "warning", error=str(error))


def host_uid(original: Spec) -> int:
    """Return the host's uid of a container's first process: that is what the MPS server sees."""
    user = original.at("process", "user") or {}
    return mapped_uid(original, int(user.get("uid", 0)) if isinstance(user, dict) else 0)


def mapped_uid(original: Spec, uid: int) -> int:
    """Return the host's uid of a container's `uid`."""
    for mapping in original.entries("linux", "uidMappings"):
        first, host, size = (mapping.get(key, 0) for key in ("containerID", "hostID", "size"))
        if all(isinstance(part, int) for part in (first, host, size)) and 0 <= uid - first < size:
            return int(host + uid - first)
    return uid


def image_facts(original: Spec, rootfs: Rootfs, package: Compat | None, node: Node) -> rules.Image:
    """Return what the image of a container needs; `package` is its own libcuda."""
    return images.inspect_image(rootfs, original.variables, _args(original), node.platform, package)


def machine_facts(cards: Sequence[Card], driver: LoadedDriver, *, shared: bool) -> rules.Machine:
    """Return what a container gets: the driver, its cards and what holds them."""
    return rules.Machine(
        driver=parse_version(driver.nvml.driver_version) or (),
        cuda=parse_version(driver.nvml.loaded.cuda_version) or (),
        cards=tuple(
            rules.CardFacts(
                card.model,
                None if card.capability is None else strip_zeros(card.capability),
                card.brand,
                datacenter=card.datacenter,
            )
            for card in cards
        ),
        backend="interposer" if shared else "exclusive",
    )


def sweep_compat(node: Node, ledger: Ledger) -> None:
    """Remove the copies of cuda-compat packages that no container has had for a day."""
    try:
        for name in cuda_compat.sweep(compat_folder(node.config), _used(ledger)):
            log("cuda-compat-removed", copy=name)
    except OSError as error:
        log("cuda-compat-removal-failed", "warning", error=str(error))


def compat_folder(config: Config) -> Path:
    """Return where copies of cuda-compat packages are."""
    return config.state_dir / "compat"


def _args(original: Spec) -> list[str]:
    words = original.at("process", "args")
    return [arg for arg in words if isinstance(arg, str)] if isinstance(words, list) else []


def _used(ledger: Ledger) -> set[str]:
    return {record.compat for record in ledger.entries.values()}
