# SPDX-License-Identifier: Apache-2.0
"""The edits of a container's spec, and of its image's layer.

The result for an image is kept (oci/image_view.py) if nothing had to be noted of the
container, it has no driver of its own, and no volume is in the way: that is nearly every container.

`numa: bind` keeps a container's CPUs and memory to the NUMA nodes of its cards.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpushare import compatibility
from gpushare.compatibility import image as images
from gpushare.compatibility import rules
from gpushare.compatibility.rules import parse_version, strip_zeros
from gpushare.config import Config
from gpushare.daemon.cards.mps_state import PIPE_ENV, PIPES
from gpushare.daemon.core.log import log
from gpushare.daemon.limits import AUDITED, INTERPOSER
from gpushare.daemon.node import LoadedDriver, Node
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import NO_NODE, Card, CardCapacity, Links
from gpushare.daemon.placement.request import ImageNeed, NoRoom, PlacedCard, PlacementRequest
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.host.numa import Bound, bind
from gpushare.oci import container, cuda_compat, driver_files, elf, ldcache, loader
from gpushare.oci.cdi import CdiError
from gpushare.oci.container import OURS, LibraryTree
from gpushare.oci.cuda_compat import Compat, CompatError
from gpushare.oci.driver_files import CUDA, NVML, DriverCapabilities, DriverFiles, with_compat
from gpushare.oci.edits import Edits, Hook, Mount
from gpushare.oci.image_view import ImageView, PreparedImage
from gpushare.oci.rootfs import Rootfs
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
        mount_libraries(state.node, state.mounts) if _can_have_tree(original, record) else None,
        cards[0][0] if len(cards) > len(record.allocations) else "",
    )
    made_under = (driver.files, driver.cards, driver.nvml, state.node.config)
    request = _request(original, image, record, tenant, driver)
    if request is not None:
        known = state.prepared_images.find(made_under, request, image)
        if known is not None:
            with suppress(OSError):  # it is not as it was any more: looked at again
                return _as_prepared(known, image, tenant, state.node)
    chosen = choose_files(original, image, record, state, check)
    wanted = _wanted(chosen, image, tenant, state.node)
    placed = container.place(wanted, original, image, chosen.files)
    if tenant.tree is not None:
        placed = container.with_tree(placed, tenant.tree)
    keep_notes(record, placed.notes, state)
    cache = container.merged_cache(placed, image, state.node.platform)
    inputs = image.seen()
    is_plain = chosen.is_plain and not placed.notes and not placed.volume
    if request is not None and inputs is not None and is_plain:
        prepared = PreparedImage(inputs, image.created, placed.wanted, cache, tenant.directory)
        state.prepared_images.keep(made_under, request, prepared)
    return container.with_cache(placed, cache, image, _kept_caches(state.node))


@dataclass(frozen=True)
class _TenantParts:
    """The parts of a container's edits that do not depend on its image."""

    shared: bool
    cards: list[tuple[str, ...]]  # their names in the CDI spec
    hooks: tuple[Hook, ...]
    directory: str
    libraries: Path
    tree: LibraryTree | None
    visible: str = ""  # the UUID of its card, if it has the nodes of others, to which it may move


def _filters(libraries: Path) -> loader.Filters:
    return loader.Filters(str(libraries / CUDA), str(libraries / NVML))


def mount_libraries(node: Node, mounts: TenantMounts) -> LibraryTree | None:
    """Return the libraries of every share, mounted as one tree; None: they cannot be."""
    files = container.tree_files(node.loaded().files, _filters(node.libraries))
    try:
        return LibraryTree(str(mounts.library_tree(OURS, files)), files)
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
    chosen: DriverFileChoice,
    image: ImageView,
    tenant: _TenantParts,
    node: Node,
) -> container.ContainerEdits:
    host = container.HostFiles(chosen.files, _filters(tenant.libraries), node.platform)
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


def _as_prepared(known: PreparedImage, image: ImageView, tenant: _TenantParts, node: Node) -> Edits:
    edits = known.edits_of(tenant.directory, tenant.hooks)
    image.create(known.created)
    if known.cache is None:
        return edits
    mount = loader.put_cache(image, known.cache, _kept_caches(node))
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
    own = list(filter(None, [driver.card(allocation.uuid) for allocation in record.allocations]))
    others = [
        card
        for card in driver.cards
        if moves and record.shared and len(own) == 1 and card not in own
        if card.instance is None and not card.is_divided
        if any(card.model == own_card.model and own_card.instance is None for own_card in own)
    ]
    return [
        (card.uuid, *(card.instance.names if card.instance else (str(card.index),)))
        for card in (*own, *others)
    ]


def _kept_caches(node: Node) -> Path:
    return node.config.state_dir / "ldcache"


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
        binding = Bound(notes=(note,))
    else:
        path = original.at("linux", "cgroupsPath")
        allowed = state.node.numa.allowed(path if isinstance(path, str) else "")
        binding = bind(original, state.node.numa.of(nodes.values()), allowed)
    if binding.notes:
        state.in_start(lambda: _note_binding(record, binding.notes, state.ledger))
        for note in binding.notes:
            log("tenant-request-adjusted", tenant=record.key, name=record.title, note=note)
    return binding


def _note_binding(record: TenantRecord, notes: Sequence[str], ledger: Ledger) -> None:
    known = ledger.require(record)
    ledger.describe(record.key, notes, known.uninterposed, known.compat)


# --- the route to the MPS server, for a container on a card in MPS mode ---
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


def with_server(edits: Edits, original: Spec, record: TenantRecord, node: Node) -> Edits:
    """Return `edits` with what makes the container of `record` a client of its card's server.

    MpsRefused: it cannot be one.
    """
    grant = node.mps.admit(record.key, host_uid(original))
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


# --- the driver files that a container gets, and whether its image fits driver and cards ---
#
# The files depend on NVIDIA_DRIVER_CAPABILITIES, on the cuda-compat package of the image and on
# the program that the container starts. Nothing that was requested is dropped silently: it is
# noted, and `inspect`, `ps` and the log show it. `compatibility` of the configuration, or of the
# namespace, decides what happens to an image that does not fit.

IGNORE: Final = "ignore"
REFUSE: Final = "refuse"

_MOST_NOTES: Final = 6


class IncompatibleImage(UserError):
    """The image does not fit, and the node's policy refuses such a container."""


def compatibility_notes(
    original: Spec, rootfs: Rootfs, package: Compat | None, record: TenantRecord, node: Node
) -> list[str]:
    """Return what is noted of the container of `record`; IncompatibleImage where it is refused.

    `package` is the image's own libcuda, if it has one.
    """
    policy = node.config.terms_of(record.namespace).compat
    if policy == IGNORE:
        return []
    driver = node.loaded()
    cards = list(filter(None, [driver.card(allocation.uuid) for allocation in record.allocations]))
    machine = machine_facts(cards, driver, shared=record.shared)
    image = image_facts(original, rootfs, package, node)
    ill = problems(compatibility.evaluate_image(image, machine))
    for finding in ill:
        _log(finding, record, refused=policy == REFUSE and finding.level == "refuse")
    if policy == REFUSE and ill and ill[0].level == "refuse":
        where = f"compatibility: {REFUSE} of gpushare.yaml"
        raise IncompatibleImage(
            f"the image is incompatible with this node: {ill[0]}. The node's policy refuses it "
            f"({where}); for details, run gpushare compat"
        )
    return [str(finding) for finding in ill[:_MOST_NOTES]]


def image_facts(original: Spec, rootfs: Rootfs, package: Compat | None, node: Node) -> rules.Image:
    """Return what the image of a container needs; `package` is its own libcuda."""
    return images.inspect_image(rootfs, original.variables, _args(original), node.platform, package)


def machine_facts(cards: Sequence[Card], driver: LoadedDriver, *, shared: bool) -> rules.Machine:
    """Return what a container gets: the driver, its cards and what holds them."""
    return rules.Machine(
        driver=parse_version(driver.nvml.driver_version) or (),
        cuda=parse_version(driver.nvml.cuda_version) or (),
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


def problems(
    findings: Sequence[rules.CompatibilityFinding],
) -> tuple[rules.CompatibilityFinding, ...]:
    """Return the findings that users are told of, the gravest first."""
    return tuple(
        finding for finding in findings if finding.level != "ok" and finding.rule != rules.PACKAGE
    )


def _args(original: Spec) -> list[str]:
    words = original.at("process", "args")
    return [arg for arg in words if isinstance(arg, str)] if isinstance(words, list) else []


def _log(finding: rules.CompatibilityFinding, record: TenantRecord, *, refused: bool) -> None:
    figures: Mapping[str, str] = finding.numbers
    log(
        "tenant-image-incompatible",
        "warning",
        tenant=record.key,
        name=record.title,
        rule=finding.rule,
        what=finding.what,
        figures=dict(figures),
        refused=refused,
    )


_COPY_SECONDS: Final = 6.0  # of a launcher's patience of ten
_KNOWN: Final = ", ".join((*driver_files.ALL, "all"))
_UNMEDIATED: Final = (
    "calls that reach the card without libcuda are not refused, and the audit charges their memory"
)


@dataclass(frozen=True)
class DriverFileChoice:
    """The driver files of a container, and its driver capabilities."""

    files: DriverFiles
    wanted: frozenset[str]  # the capabilities of whole cards
    extra: frozenset[str]  # those of a share, past the interposer library
    is_plain: bool = False  # nothing is noted of the container, and it has no driver of its own


def choose_files(
    original: Spec,
    rootfs: Rootfs,
    record: TenantRecord,
    state: DaemonState,
    check: Callable[[], None] = lambda: None,
) -> DriverFileChoice:
    """Return the driver files of a container, and keep the notes in the ledger.

    It reads the image, so it is never the decide thread's; `check` ends it by an exception.
    IncompatibleImage if the image is incompatible with this node and the policy refuses it.
    """
    requested = driver_files.requested_capabilities(original.variables)
    notes = list(_of_capabilities(requested, record, state.node.config))
    extra = frozenset[str]()
    if record.shared:
        notes += _of_program(original, rootfs, state.node)
        if state.node.config.allow_uninterposed:
            extra = frozenset(requested.uninterposed)
    package = cuda_compat.find(rootfs)
    notes += compatibility_notes(original, rootfs, package, record, state.node)
    files, copy, compat_notes = _of_compat(rootfs, package, record, state, check)
    notes += compat_notes
    is_plain = not (notes or extra or copy)
    if not is_plain:
        state.in_start(lambda: _keep(record, notes, extra, copy, state.ledger))
    return DriverFileChoice(files, requested.wanted, extra, is_plain)


def keep_notes(record: TenantRecord, notes: Sequence[str], state: DaemonState) -> None:
    """Add `notes` to those of the tenant, after `choose_files`."""

    def keep() -> None:
        known = state.ledger.require(record)
        _keep(known, list(notes), frozenset(known.uninterposed), known.compat, state.ledger)

    if notes:
        state.in_start(keep)


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


def _keep(
    record: TenantRecord, notes: list[str], extra: frozenset[str], copy: str, ledger: Ledger
) -> None:
    ledger.require(record)
    ledger.describe(record.key, notes, sorted(extra), copy)
    if extra and record.isolation == INTERPOSER:
        ledger.change(record.key, isolation=AUDITED)
    for note in notes:
        log("tenant-request-adjusted", tenant=record.key, name=record.title, note=note)


def _of_capabilities(
    requested: DriverCapabilities, record: TenantRecord, config: Config
) -> Iterator[str]:
    if requested.unknown:
        words = ", ".join(requested.unknown)
        yield f"{driver_files.VARIABLE}: no such capability: {words} (there are {_KNOWN})"
    past = ", ".join(requested.uninterposed)
    if not past or not record.shared:
        return
    if config.allow_uninterposed:
        yield f"{past}: bypasses the interposer library; the audit charges its memory afterwards"
    else:
        yield (
            f"not given: {past} ({driver_files.VARIABLE}); a share has compute and utility. "
            "For more, request a whole card, or set allow_bypass_capabilities in gpushare.yaml"
        )


def _of_program(original: Spec, rootfs: Rootfs, node: Node) -> Iterator[str]:
    words = original.at("process", "args")
    args = [arg for arg in words if isinstance(arg, str)] if isinstance(words, list) else []
    directory = original.at("process", "cwd")
    process = (args, original.variables, directory if isinstance(directory, str) else "/")
    program = elf.entry_program(rootfs, process, node.platform)
    if program.kind == "musl":
        yield (
            f"{program.path} uses musl, and the driver requires glibc: CUDA cannot be "
            f"loaded in it; {_UNMEDIATED}"
        )
    elif program.kind == "static":
        yield (
            f"{program.path} is statically linked: no library can be loaded into it, including the "
            f"interposer library; {_UNMEDIATED}. Programs that it starts are mediated if they are "
            "not static"
        )
    elif program.kind == "foreign":
        yield (
            f"{program.path} is built for another architecture or for 32 bits: this machine has no "
            "driver for it; "
            f"{_UNMEDIATED}"
        )


def _of_compat(
    rootfs: Rootfs,
    package: Compat | None,
    record: TenantRecord,
    state: DaemonState,
    check: Callable[[], None],
) -> tuple[DriverFiles, str, list[str]]:
    """Return the driver with a newer libcuda of the image's, the name of its copy, and notes."""
    driver = state.node.loaded()
    files = driver.files
    if package is None or package.version <= cuda_compat.version(driver.nvml.driver_version):
        return files, "", []
    subject = f"cuda-compat {package.text} of the image"
    than = f"is newer than the driver {driver.nvml.driver_version}"
    cards = [driver.card(allocation.uuid) for allocation in record.allocations]
    other = next(
        (card.model for card in cards if isinstance(card, Card) and not card.datacenter), ""
    )
    if other:
        why = f"it requires data center cards, and {other} is not one"
        return files, "", [f"{subject} {than} and is not used: {why}"]
    until = time.monotonic() + _COPY_SECONDS

    def check_time() -> None:
        check()
        if time.monotonic() > until:
            raise CompatError(f"takes longer than {_COPY_SECONDS:g} s to copy")

    try:
        store = compat_folder(state.node.config)
        folder = cuda_compat.keep(rootfs, package, store, _used(state.ledger), check_time)
        newer = with_compat(files, folder)
    except (CompatError, CdiError, OSError) as error:
        return files, "", [f"{subject} {than} and is not used: it {error}"]
    log(
        "cuda-compat-selected",
        tenant=record.key,
        name=record.title,
        version=package.text,
        copy=folder.name,
    )
    return newer, folder.name, [f"{subject} {than}: its libcuda is the container's"]


def _used(ledger: Ledger) -> set[str]:
    return {record.compat for record in ledger.entries.values()}


# --- which cards run a container's image, on a node whose cards differ: before one is chosen ---
#
# Cards that run it worse than the best ones are avoided while the best have room. If the node's
# policy refuses images that do not run on their cards (`compatibility: refuse`), such cards are not
# used at all. An image that runs on none of the cards is left to the check after placement, which
# knows what the container gets.

_LEVELS: Final = rules.LEVELS


def find_image_needs(
    original: Spec, rootfs_fd: int, policy: str, node: Node, *, shared: bool
) -> Mapping[str, ImageNeed]:
    """Return by UUID the cards that run the image worse than others, and why.

    It reads the image, so it is never the decide thread's, and only where the cards differ.
    """
    driver = node.loaded()
    if policy == IGNORE or len(_kinds(node)) < 2:
        return {}
    with closing(ImageView(rootfs_fd)) as rootfs:
        image = image_facts(original, rootfs, cuda_compat.find(rootfs), node)
    findings = {}
    for card in driver.cards:
        machine = machine_facts([card], driver, shared=shared)
        ill = problems(compatibility.evaluate_image(image, machine))
        findings[card.uuid] = ill
    best = min(_LEVELS.index(rules.worst(ill)) for ill in findings.values())
    return {
        uuid: ImageNeed(
            f"{ill[0].what} ({ill[0].rule})",
            ill[0].fix,
            is_refused=policy == REFUSE and ill[0].level == "refuse",
        )
        for uuid, ill in findings.items()
        if _LEVELS.index(rules.worst(ill)) > best
    }


def _kinds(node: Node) -> set[tuple[object, ...]]:
    """Return what differs between the node's cards that an image can need."""
    return {(card.capability, card.brand, card.datacenter) for card in node.loaded().cards}


def place_suitably(
    request: PlacementRequest, capacities: Sequence[CardCapacity], links: Links
) -> tuple[PlacedCard, ...]:
    """Return a place on cards that run the image best, or else on others that run it; NoRoom."""
    required = {uuid: need for uuid, need in request.image_needs.items() if need.is_refused}
    if required != request.image_needs:
        with suppress(NoRoom):
            return place_request(request, capacities, links)
    return place_request(replace(request, image_needs=required), capacities, links)
