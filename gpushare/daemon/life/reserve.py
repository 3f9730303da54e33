# SPDX-License-Identifier: Apache-2.0
"""From what is asked to a reservation with pages, for containers and host processes alike.

Order: the ledger first, then what it speaks of, so that a crash in between leaves an entry that
expires and never memory that nobody counts. Whatever fails, everything is undone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gpushare.daemon import backends, clock
from gpushare.daemon.compute import shares
from gpushare.daemon.identity.processes import NOBODY, Process
from gpushare.daemon.life import release
from gpushare.daemon.log import log
from gpushare.daemon.memory.lend import lend, make_room
from gpushare.daemon.node import Loaded, Node
from gpushare.daemon.pages.grant import Granted
from gpushare.daemon.placement.bounds import Bounds, Part
from gpushare.daemon.placement.choose import Ask, NoRoom, Placed, place
from gpushare.daemon.service.tenant_socket import TenantSocket
from gpushare.daemon.store.ledger import Entry, Holding
from gpushare.daemon.tenants import SIZE_BYTES, Pages
from gpushare.quota import Given, Pod, Quota, Terms, exact_size
from gpushare.quota.errors import quoted

_MOST_NOTES: Final = 16


@dataclass(frozen=True)
class Applicant:
    """Who asks.

    `label` is the SELinux label of a container's mounts; `owner` may mount its directory beside
    root; `status_owner` alone may write its status, None: whoever is in it. `terms` are what the
    node's policy says of it. `maker` is the process with which a reservation ends, None: none, and
    it expires.
    """

    key: str
    identity: str
    name: str
    engine: str
    bundle: str = ""
    uid: int = 0
    label: str = ""
    owner: int = 0
    status_owner: int | None = None
    isolation: str = backends.INTERPOSER
    pod: Pod | None = None
    terms: Terms = field(default_factory=Terms)
    maker: Process | None = None


def noted(notes: Sequence[str]) -> tuple[str, ...]:
    """Return what is kept of a quota's notes: as many as a packet has room for."""
    if len(notes) <= _MOST_NOTES:
        return tuple(notes)
    return (*notes[: _MOST_NOTES - 1], f"and {len(notes) - _MOST_NOTES + 1} more")


def reserve(applicant: Applicant, quota: Quota, given: Given, node: Node) -> Entry:
    """Find room and take it; the entry is `reserved` and its pages are there.

    NoRoom, NoSuchCard, NoDriver, QuotaError: nothing was taken. OSError: the pages could not be
    made, and nothing is taken.
    """
    driver = node.loaded()
    node.doubt.refuse()
    _refuse_unsupported(quota, driver, whole=given.kind == "whole")
    give_back_earlier(applicant, node)
    if given.kind == "shared":
        driver.contexts.wait()
    given = applicant.terms.ceilings.put_down(quota, given)
    placed = _place(_ask(quota, given, _bounds(applicant, quota, node)), node)
    _refuse_low_limit(quota, placed)
    entry = _entry(applicant, quota, given, placed, node)
    node.ledger.add(entry)
    try:
        if entry.shared:
            _make_pages(entry, applicant, driver, node)
    except BaseException:
        release.end(entry.key, node, "its pages could not be made")
        raise
    if given.memory_limit_bytes is not None:
        lend(node)
    log(
        "tenant-reserved",
        tenant=entry.key,
        id=entry.id,
        name=entry.title,
        given=given.kind,
        cards=[one.card.index for one in placed],
        memory_bytes=placed[0].memory_bytes,
        cores=placed[0].cores,
        policy=entry.policy,
        notes=entry.notes,
    )
    # With the answer, not before it: a thread that is woken now takes the interpreter from us.
    node.loop.soon(lambda: shares.tell(node))
    return entry


def give_back_earlier(applicant: Applicant, node: Node) -> None:
    """Release what an earlier start of the same container left; NoRoom while it still runs."""
    entry = node.ledger.entries.get(applicant.key)
    if entry is None:
        return
    if entry.state == "bound":
        release.kill_stranded(entry)
    if entry.state == "bound" and not release.is_gone(entry, node):
        raise NoRoom(
            f"container {entry.title} still runs (pid {entry.pid}); stop it before it is made again"
        )
    release.end(applicant.key, node, "the container is made again")


def _refuse_unsupported(quota: Quota, driver: Loaded, *, whole: bool) -> None:
    """Refuse what cannot be held here: a promise that is not kept is worse than none."""
    backends.refuse(quota, driver, whole=whole)
    if quota.oversubscribe == "host":
        raise quota.refuse("oversubscribe", "is not in this version", "leave it out")


def _place(ask: Ask, node: Node) -> tuple[Placed, ...]:
    """Find room where no tenant can be lent any of it, or be about to take it; NoRoom."""
    while True:
        rooms = node.rooms()
        placed = place(ask, rooms, node.loaded().links)
        if not make_room({one.card.uuid: one.memory_bytes for one in placed}, rooms, node):
            return placed


def _refuse_low_limit(quota: Quota, placed: tuple[Placed, ...]) -> None:
    """Refuse a memory-limit below the memory, which as a percentage is known only now."""
    most = max(one.memory_bytes for one in placed)
    if quota.memory_limit_bytes is not None and quota.memory_limit_bytes < most:
        asked = quota.asked["memory-percent"]
        rule = f"is below {asked.source} {quoted(asked.shown)}, {exact_size(most)}"
        raise quota.refuse("memory-limit", rule, f"write {exact_size(most)} or more")


def _bounds(applicant: Applicant, quota: Quota, node: Node) -> Bounds:
    """Return what the node's policy leaves of each card to `applicant`."""
    whose, others = _same_group(applicant, node)
    driver = node.loaded()
    parts = tuple(
        Part(entry.key, entry.title, card, holding.most_bytes, holding.reserved_cores)
        for entry in others
        for holding in entry.holdings
        if (card := driver.card(holding.uuid)) is not None
    )
    return Bounds(
        applicant.terms.ceilings,
        applicant.terms.together,
        applicant.terms.total,
        whose,
        parts,
        memory_is_set=any(map(quota.is_set, ("memory", "memory-percent"))),
        cores_are_set=quota.is_set("cores"),
    )


def _same_group(applicant: Applicant, node: Node) -> tuple[str, list[Entry]]:
    """Return what `together` holds for: the tenants of a namespace, or those of a user."""
    entries = node.ledger.entries.values()
    if applicant.isolation == "advice":
        own = [e for e in entries if e.isolation == "advice" and e.uid == applicant.uid]
        return f"user {applicant.uid}", own
    namespace = applicant.pod.namespace if applicant.pod is not None else ""
    if not namespace:
        return "", []
    return f"namespace {namespace}", [e for e in entries if e.namespace == namespace]


def _ask(quota: Quota, given: Given, bounds: Bounds) -> Ask:
    whole = given.kind == "whole"
    return Ask(
        whole=whole,
        count=given.count,
        memory_bytes=None if whole else given.memory_bytes,
        memory_percent=None if whole else given.memory_percent,
        memory_limit_bytes=None if whole else given.memory_limit_bytes,
        cores=0 if whole else given.cores,
        policy=given.policy,
        policy_is_set=quota.is_set("policy"),
        devices=given.devices,
        minors=given.minors,
        allow=quota.allow,
        deny=quota.deny,
        strategy=quota.placement or "",
        bounds=bounds,
        said={key: str(asked.source) for key, asked in quota.asked.items()},
    )


def _entry(
    applicant: Applicant, quota: Quota, given: Given, placed: tuple[Placed, ...], node: Node
) -> Entry:
    whole = given.kind == "whole"
    pod = applicant.pod or Pod("")
    maker = applicant.maker or NOBODY
    return Entry(
        key=applicant.key,
        state="reserved",
        id=applicant.identity,
        name=applicant.name,
        engine=applicant.engine,
        bundle=applicant.bundle,
        uid=applicant.uid,
        policy="" if whole else given.policy,
        weight=given.weight,
        priority=given.priority,
        class_=given.class_,
        isolation=backends.first(applicant.isolation, whole=whole),
        quota=quota.rows(),
        asked=quota.rows_beneath(),
        notes=noted(given.notes),
        namespace=pod.namespace,
        sandbox=pod.sandbox,
        container=pod.container,
        created=time.time(),
        expires=clock.boottime() + node.config.timing.bind,
        maker=maker.pid,
        maker_starttime=maker.starttime,
        holdings=tuple(
            Holding(
                *(one.card.uuid, one.memory_bytes, given.cores, one.cores, one.whole),
                memory_limit_bytes=given.memory_limit_bytes,
            )
            for one in placed
        ),
    )


def _make_pages(entry: Entry, applicant: Applicant, driver: Loaded, node: Node) -> None:
    directory = node.mounts.make(
        entry.key, size_bytes=SIZE_BYTES, owner=applicant.owner, label=applicant.label
    )
    granted = [_granted(holding, driver) for holding in entry.holdings]
    pages = Pages.make(directory, entry.key, granted, applicant.status_owner)
    try:
        tenant_socket = TenantSocket.listen(entry.key, directory)
    except BaseException:
        pages.close()
        raise
    node.tenants.add(entry.key, pages)
    node.loop.soon(lambda: node.watch.hear(tenant_socket))
    node.loop.soon(node.mounts.refill)


def _granted(holding: Holding, driver: Loaded) -> Granted:
    card = driver.card(holding.uuid)
    assert card is not None, holding.uuid
    context_bytes = driver.contexts.bytes_of(card)
    return Granted(holding.uuid, holding.memory_bytes, context_bytes, holding.cores)
