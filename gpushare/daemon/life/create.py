# SPDX-License-Identifier: Apache-2.0
"""The create operation: a bundle in, a bundle with its part of a GPU out, and a reservation.

Nothing is half done: until the spec is replaced, in one rename at the very end, the bundle is as
the engine wrote it, and whatever fails before takes the reservation back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare.daemon.cards import upgrade
from gpushare.daemon.identity import names, pods, processes
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.life import near, parts, release
from gpushare.daemon.life.reserve import Applicant, give_back_earlier, noted, reserve
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import NoRoom
from gpushare.daemon.store.ledger import Entry
from gpushare.oci import container, edits, nvidia, spec
from gpushare.oci.asked import asked_of
from gpushare.oci.driver import CUDA, NVML
from gpushare.oci.pods import annotations_of, asks, believed
from gpushare.oci.rootfs import Rootfs
from gpushare.oci.spec import Spec
from gpushare.quota import (
    Given,
    Pod,
    Quota,
    Terms,
    pod_of,
    refuse_whole,
)
from gpushare.quota.keys import KEYS

STRONG: Final = "strong"


@dataclass(frozen=True)
class Bundle:
    """A container about to be made; the descriptors are of its bundle and its root filesystem.

    `maker` is the process that makes it: the launcher, which becomes the low-level runtime. 0 is
    one that cannot be seen from here.
    """

    identity: str
    path: str
    marker: str
    bundle_fd: int
    rootfs_fd: int
    maker: int = 0

    @property
    def key(self) -> str:
        """The tenant's key: the same for every start of the same container."""
        name = f"{self.path}\0{self.identity}".encode()
        return hashlib.sha256(name).hexdigest()[:16]


@dataclass(frozen=True)
class Asked:
    """What a container asks for: in its spec already (`placed`), in words, and what is given."""

    placed: nvidia.Request
    quota: Quota
    given: Given
    pod: Pod | None
    terms: Terms


def create(bundle: Bundle, node: Node) -> dict[str, Any]:
    """Give the container what it asks for: `{"given": "none" | "shared" | "whole", "key": ...}`.

    QuotaError, NoRoom, NoSuchCard, NoDriver, SpecError, CdiError, OSError: it gets nothing, and the
    bundle is as it was.
    """
    _refuse_second_maker(bundle, node)
    loaded = spec.load(bundle.bundle_fd)
    original = edits.strip(loaded)
    # Whoever may annotate could call any container a sandbox, and keep the card that is in it.
    if original.is_sandbox() and not nvidia.is_placed(original):
        return _nothing(bundle, original, loaded, None, node)
    asked = _ask(bundle, original, node)
    if asked.given.kind == "none":
        stripped = edits.apply(original, edits.Edits(), asked.placed.taken)
        return _nothing(bundle, stripped, loaded, asked.given, node)
    entry = _reserve(bundle, original, asked, node)
    try:
        edited = _edited(bundle, original, asked, entry, node)
        spec.store(bundle.bundle_fd, edited, loaded)
    except BaseException:
        release.end(entry.key, node, "the container could not be given it")
        raise
    if entry.maker:
        release.watch_maker(entry, node)
    return {"given": asked.given.kind, "key": entry.key}


def _ask(bundle: Bundle, original: Spec, node: Node) -> Asked:
    """Return what the container asks for, of whatever source, and what that comes to here."""
    placed = nvidia.Request() if node.driver is None else nvidia.find(original, node.driver.files)
    annotations = believed(bundle.path, original.annotations)
    heard = asked_of(
        annotations,
        original.variables,
        of_pod=annotations_of(annotations, bundle.path),
        cards=placed.cards,
        terms_of=node.config.terms_of,
        operator=_of_quota(node.overrides.of(bundle.identity)),
    )
    if heard.quota.asked or bundle.marker == STRONG:
        node.loaded()  # nothing of ours can be in the way of what asks for nothing of ours
    return Asked(placed, heard.quota, heard.given(), heard.pod, heard.terms)


def _of_quota(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return what an operator set that a request could have asked for."""
    return {key: text for key, text in overrides.items() if key in KEYS}


def _reserve(bundle: Bundle, original: Spec, asked: Asked, node: Node) -> Entry:
    """Promise the container what it asks for, where the node's terms and its pod allow it."""
    upgrade.refuse_changed(node)
    asked.terms.ceilings.refuse_above(asked.quota, asked.given, asked.placed.cards)
    if asked.pod is not None:
        pods.settle(asked.pod, node)
        pods.refuse_second(asked.pod, asked.quota, node)
    maker = None
    if bundle.maker:
        # One that has ended by now is nobody's process any more, and that is found out at the end.
        maker = Process(bundle.maker, processes.since(bundle.maker) or 0, 0, bundle.maker)
    applicant = replace(_applicant(bundle, original), terms=asked.terms, maker=maker)
    try:
        return reserve(applicant, asked.quota, asked.given, node)
    except NoRoom as error:
        if asked.given.kind != "whole":
            raise
        why = f"cannot be given: {error}"
        raise refuse_whole(asked.quota, asked.placed.cards, why) from error


def _refuse_second_maker(bundle: Bundle, node: Node) -> None:
    """Raise NoRoom while another runtime is at the same container.

    It may have mounted the pages by now: replaced, they would be nobody's, and the container that
    is bound in the end would have pages that the daemon does not know.
    """
    entry = node.ledger.entries.get(bundle.key)
    if entry is None or entry.state != "reserved" or entry.maker in (0, bundle.maker):
        return
    if not release.is_abandoned(entry):
        raise NoRoom(
            f"container {entry.title} is being made by process {entry.maker}; wait for it, or end "
            "it"
        )


def _nothing(
    bundle: Bundle, wanted: Spec, loaded: Spec, given: Given | None, node: Node
) -> dict[str, Any]:
    """Take out what an earlier start put in, and note why the container got no GPU."""
    applicant = _applicant(bundle, wanted)
    give_back_earlier(applicant, node)
    if asks(wanted.annotations):
        wanted = edits.seen(wanted)  # else gpushare-hook would take it for one that came past us
    spec.store(bundle.bundle_fd, wanted, loaded)
    if given is not None:
        notes = noted(given.notes)
        node.ledger.add(
            Entry(
                key=bundle.key,
                state="none",
                id=bundle.identity,
                name=applicant.name,
                engine=applicant.engine,
                bundle=bundle.path,
                why=given.why,
                notes=notes,
            )
        )
        log(
            "tenant-given-none",
            tenant=bundle.key,
            id=bundle.identity,
            why=given.why,
            notes=notes,
        )
    return {"given": "none", "key": bundle.key}


def _applicant(bundle: Bundle, original: Spec) -> Applicant:
    annotations = believed(bundle.path, original.annotations)
    name = names.from_spec(bundle.identity, bundle.path, annotations)
    return Applicant(
        key=bundle.key,
        identity=bundle.identity,
        name=name.name,
        engine=name.engine,
        bundle=bundle.path,
        label=original.mount_label,
        owner=_root_of(original),
        pod=pod_of(annotations),
    )


def _root_of(original: Spec) -> int:
    """Return the host's uid of the container's root: it opens the sources of its own mounts."""
    for mapping in original.entries("linux", "uidMappings"):
        if mapping.get("containerID") == 0 and isinstance(mapping.get("hostID"), int):
            return int(mapping["hostID"])
    return 0


def _edited(bundle: Bundle, original: Spec, asked: Asked, entry: Entry, node: Node) -> Spec:
    """Return the spec with the cards of `entry`; the image's loader cache is made to name them."""
    driver = node.loaded()
    rootfs = Rootfs(bundle.rootfs_fd)
    chosen = parts.choose(original, rootfs, entry, node)
    cards = [
        (card.uuid, str(card.index))
        for holding in entry.holdings
        if (card := driver.card(holding.uuid)) is not None
    ]
    libraries = node.libraries
    filters = container.Filters(str(libraries / CUDA), str(libraries / NVML))
    host = container.Host(chosen.files, filters, node.platform)
    program = libraries.parent / "bin" / "gpushare-hook"
    hooks = container.hooks(str(program), str(node.config.socket), entry.key)
    if entry.shared:
        directory = str(node.mounts.path(entry.key))
        wanted = container.shared(
            host,
            cards,
            rootfs=rootfs,
            hooks=hooks,
            tenant_directory=directory,
            extra=chosen.extra,
        )
    else:
        wanted = container.whole(host, cards, rootfs=rootfs, hooks=hooks, wanted=chosen.wanted)
    keep = node.config.state_dir / "ldcache"
    cache = container.install_cache(rootfs, wanted.cache, node.platform, keep)
    made = wanted.with_mount(cache)
    if asked.quota.numa == near.BIND:
        cpuset = near.bound(original, entry, node)
        made = replace(made, cpus=cpuset.cpus, mems=cpuset.mems)
    return edits.apply(original, made, asked.placed.taken)
