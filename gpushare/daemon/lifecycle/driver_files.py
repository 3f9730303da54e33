# SPDX-License-Identifier: Apache-2.0
"""The driver files that a container gets, and whether its image fits the driver and the cards.

The files depend on NVIDIA_DRIVER_CAPABILITIES, on the cuda-compat package of the image and on the
program that the container starts. Nothing that was requested is dropped silently: it is noted, and
`inspect`, `ps` and the log show it.

The configuration's `compatibility`, or that of the namespace, decides what happens to an image that
does not fit: nothing is checked, the finding is noted, or the container is refused. Only containers
that get a GPU are checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpushare import compatibility
from gpushare.compatibility import image as images
from gpushare.compatibility import rules as compat_driver
from gpushare.compatibility.rules import parse_version, strip_zeros
from gpushare.config import Config
from gpushare.daemon.core.log import log
from gpushare.daemon.limits import driver_limits
from gpushare.daemon.node import LoadedDriver
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import Card, CardCapacity, Links
from gpushare.daemon.placement.request import ImageNeed, NoRoom, PlacedCard, PlacementRequest
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.oci import cuda_compat, driver_files, elf
from gpushare.oci.cdi import CdiError
from gpushare.oci.cuda_compat import Compat, CompatError
from gpushare.oci.driver_files import DriverCapabilities, DriverFiles, with_compat
from gpushare.oci.image_view import ImageView
from gpushare.oci.rootfs import Rootfs
from gpushare.oci.spec import Spec

IGNORE: Final = "ignore"
REFUSE: Final = "refuse"

_MOST_NOTES: Final = 6


class IncompatibleImage(UserError):
    """The image does not fit, and the node's policy refuses such a container."""


def compatibility_notes(
    original: Spec, rootfs: Rootfs, package: Compat | None, record: TenantRecord, state: DaemonState
) -> list[str]:
    """Return what is noted of the container of `record`; IncompatibleImage where it is refused.

    `package` is the image's own libcuda, which `parts` has looked for.
    """
    policy = state.node.config.terms_of(record.namespace).compat
    if policy == IGNORE:
        return []
    driver = state.node.loaded()
    cards = [card for one in record.allocations if (card := driver.card(one.uuid)) is not None]
    machine = machine_facts(cards, driver, shared=record.shared)
    image = image_facts(original, rootfs, package, state)
    ill = problems(compatibility.evaluate_image(image, machine))
    for one in ill:
        _log(one, record, refused=policy == REFUSE and one.level == "refuse")
    if policy == REFUSE and ill and ill[0].level == "refuse":
        where = f"compatibility: {REFUSE} of gpushare.yaml"
        raise IncompatibleImage(
            f"the image is incompatible with this node: {ill[0]}. The node's policy refuses it "
            f"({where}); for details, run gpushare compat"
        )
    return [str(one) for one in ill[:_MOST_NOTES]]


def image_facts(
    original: Spec, rootfs: Rootfs, package: Compat | None, state: DaemonState
) -> compatibility.Image:
    """Return what the image of a container needs; `package` is its own libcuda."""
    return images.inspect_image(
        rootfs, original.variables, _args(original), state.node.platform, package
    )


def machine_facts(
    cards: Sequence[Card], driver: LoadedDriver, *, shared: bool
) -> compatibility.Machine:
    """Return what a container gets: the driver, its cards and what holds them."""
    return compatibility.Machine(
        driver=parse_version(driver.nvml.driver_version) or (),
        cuda=parse_version(driver.nvml.cuda_version) or (),
        cards=tuple(
            compatibility.CardFacts(
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
    found: Sequence[compatibility.CompatibilityFinding],
) -> tuple[compatibility.CompatibilityFinding, ...]:
    """Return the findings that users are told of, the gravest first."""
    return tuple(one for one in found if one.level != "ok" and one.rule != compat_driver.PACKAGE)


def _args(original: Spec) -> list[str]:
    words = original.at("process", "args")
    return [arg for arg in words if isinstance(arg, str)] if isinstance(words, list) else []


def _log(
    finding: compatibility.CompatibilityFinding, record: TenantRecord, *, refused: bool
) -> None:
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
    """What of the driver a container gets.

    `wanted` are the capabilities of whole cards, `extra` those of a share past the interposer.
    `is_plain`: nothing is noted of this container, and it has no driver of its own.
    """

    files: DriverFiles
    wanted: frozenset[str]
    extra: frozenset[str]
    is_plain: bool = False


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
        notes += _of_program(original, rootfs, state)
        if state.node.config.allow_uninterposed:
            extra = frozenset(requested.uninterposed)
    package = cuda_compat.find(rootfs)
    notes += compatibility_notes(original, rootfs, package, record, state)
    files, copy, compat_notes = _of_compat(rootfs, package, record, state, check)
    notes += compat_notes
    is_plain = not (notes or extra or copy)
    if not is_plain:
        state.in_start(lambda: _keep(record, notes, extra, copy, state))
    return DriverFileChoice(files, requested.wanted, extra, is_plain)


def keep_notes(record: TenantRecord, notes: Sequence[str], state: DaemonState) -> None:
    """Add `notes` to those of the tenant, after `choose_files`."""

    def keep() -> None:
        known = state.ledger.require(record)
        _keep(known, list(notes), frozenset(known.uninterposed), known.compat, state)

    if notes:
        state.in_start(keep)


def sweep_compat(state: DaemonState) -> None:
    """Remove the copies of cuda-compat packages that no container has had for a day."""
    try:
        for name in cuda_compat.sweep(compat_folder(state.node.config), _used(state)):
            log("cuda-compat-removed", copy=name)
    except OSError as error:
        log("cuda-compat-removal-failed", "warning", error=str(error))


def compat_folder(config: Config) -> Path:
    """Return where copies of cuda-compat packages are."""
    return config.state_dir / "compat"


def _keep(
    record: TenantRecord, notes: list[str], extra: frozenset[str], copy: str, state: DaemonState
) -> None:
    state.ledger.require(record)
    state.ledger.describe(record.key, notes, sorted(extra), copy)
    if extra and record.isolation == driver_limits.INTERPOSER:
        state.ledger.change(record.key, isolation=driver_limits.AUDITED)
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


def _of_program(original: Spec, rootfs: Rootfs, state: DaemonState) -> Iterator[str]:
    words = original.at("process", "args")
    args = [arg for arg in words if isinstance(arg, str)] if isinstance(words, list) else []
    directory = original.at("process", "cwd")
    process = (args, original.variables, directory if isinstance(directory, str) else "/")
    found = elf.entry_program(rootfs, process, state.node.platform)
    if found.kind == "musl":
        yield (
            f"{found.path} uses musl, and the driver requires glibc: CUDA cannot be "
            f"loaded in it; {_UNMEDIATED}"
        )
    elif found.kind == "static":
        yield (
            f"{found.path} is statically linked: no library can be loaded into it, including the "
            f"interposer library; {_UNMEDIATED}. Programs that it starts are mediated if they are "
            "not static"
        )
    elif found.kind == "foreign":
        yield (
            f"{found.path} is built for another architecture or for 32 bits: this machine has no "
            "driver for it; "
            f"{_UNMEDIATED}"
        )


def _of_compat(
    rootfs: Rootfs,
    found: Compat | None,
    record: TenantRecord,
    state: DaemonState,
    check: Callable[[], None],
) -> tuple[DriverFiles, str, list[str]]:
    """Return the driver with a newer libcuda of the image's, the name of its copy, and notes."""
    driver = state.node.loaded()
    files = driver.files
    if found is None or found.version <= cuda_compat.version(driver.nvml.driver_version):
        return files, "", []
    what = f"cuda-compat {found.text} of the image"
    than = f"is newer than the driver {driver.nvml.driver_version}"
    cards = [driver.card(allocation.uuid) for allocation in record.allocations]
    other = next(
        (card.model for card in cards if isinstance(card, Card) and not card.datacenter), ""
    )
    if other:
        why = f"it requires data center cards, and {other} is not one"
        return files, "", [f"{what} {than} and is not used: {why}"]
    until = time.monotonic() + _COPY_SECONDS

    def check_time() -> None:
        check()
        if time.monotonic() > until:
            raise CompatError(f"takes longer than {_COPY_SECONDS:g} s to copy")

    try:
        store = compat_folder(state.node.config)
        folder = cuda_compat.keep(rootfs, found, store, _used(state), check_time)
        newer = with_compat(files, folder)
    except (CompatError, CdiError, OSError) as error:
        return files, "", [f"{what} {than} and is not used: it {error}"]
    log(
        "cuda-compat-selected",
        tenant=record.key,
        name=record.title,
        version=found.text,
        copy=folder.name,
    )
    return newer, folder.name, [f"{what} {than}: its libcuda is the container's"]


def _used(state: DaemonState) -> set[str]:
    return {record.compat for record in state.ledger.entries.values()}


# --- which cards run a container's image, on a node whose cards differ: before one is chosen ---
#
# Cards that run it worse than the best ones are avoided while the best have room. If the node's
# policy refuses images that do not run on their cards (`compatibility: refuse`), such cards are not
# used at all. An image that runs on none of the cards is left to the check after placement, which
# knows what the container gets.

_LEVELS: Final = compatibility.LEVELS


def find_image_needs(
    original: Spec, rootfs_fd: int, policy: str, state: DaemonState, *, shared: bool
) -> Mapping[str, ImageNeed]:
    """Return by UUID the cards that run the image worse than others, and why.

    It reads the image, so it is never the decide thread's, and only where the cards differ.
    """
    driver = state.node.loaded()
    if policy == IGNORE or len(_kinds(state)) < 2:
        return {}
    with closing(ImageView(rootfs_fd)) as rootfs:
        image = image_facts(original, rootfs, cuda_compat.find(rootfs), state)
    found = {}
    for card in driver.cards:
        machine = machine_facts([card], driver, shared=shared)
        ill = problems(compatibility.evaluate_image(image, machine))
        found[card.uuid] = ill
    best = min(_LEVELS.index(compatibility.worst(ill)) for ill in found.values())
    return {
        uuid: ImageNeed(
            f"{ill[0].what} ({ill[0].rule})",
            ill[0].fix,
            is_refused=policy == REFUSE and ill[0].level == "refuse",
        )
        for uuid, ill in found.items()
        if _LEVELS.index(compatibility.worst(ill)) > best
    }


def _kinds(state: DaemonState) -> set[tuple[object, ...]]:
    """Return what differs between the node's cards that an image can need."""
    return {(card.capability, card.brand, card.datacenter) for card in state.node.loaded().cards}


def place_suitably(
    request: PlacementRequest, capacities: Sequence[CardCapacity], links: Links
) -> tuple[PlacedCard, ...]:
    """Return a place on cards that run the image best, or else on others that run it; NoRoom."""
    required = {uuid: need for uuid, need in request.image_needs.items() if need.is_refused}
    if required != request.image_needs:
        with suppress(NoRoom):
            return place_request(request, capacities, links)
    return place_request(replace(request, image_needs=required), capacities, links)
