# SPDX-License-Identifier: Apache-2.0
"""The set operation: a running tenant's quota is changed, and stays so for its container's id.

Of compute recompute.py says what comes of it; here is memory, and that all of it is done or none.

Growing takes effect at once, or is refused where the card has no room. So does shrinking, below
what is used too: nothing could take back what a program has, but it gets nothing more before it has
freed enough, and what it still has is promised to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpushare.daemon.audit.reap import reap
from gpushare.daemon.compute import shares
from gpushare.daemon.control.recompute import KEYS as COMPUTE
from gpushare.daemon.control.recompute import recomputed
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.log import log
from gpushare.daemon.memory import hard_limit
from gpushare.daemon.memory.lend import lend, make_room
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import grows
from gpushare.daemon.store.ledger import Entry, Holding
from gpushare.daemon.tenants import Pages
from gpushare.errors import UserError
from gpushare.quota import Quota, exact_size, format_size, read_quota


class NotResizable(UserError):
    """The tenant cannot be given that quota as it is now."""


def set_quota(entry: Entry, asked: Mapping[str, str], node: Node) -> Entry:
    """Give `entry` what `asked` says, by canonical key, on each of its cards.

    The keys are `memory`, `memory-limit` and those of compute.

    NoRoom, QuotaError, NotResizable: nothing was changed.
    """
    quota = read_quota({}, {}, options=asked)
    pages = pages_of(entry, node)
    changed = recomputed(entry, asked, node)
    has_memory = quota.memory_bytes is not None or quota.memory_limit_bytes is not None
    if has_memory:
        holdings = tuple(_holding(holding, quota, entry) for holding in changed.holdings)
        changed = with_holdings(changed, holdings, pages, node, quota)
    values = _noted(quota, changed.holdings)
    node.overrides.set(entry.id, values)
    quotas = {**changed.quota, **{key: f"{text} operator" for key, text in values.items()}}
    if quota.memory_bytes is not None:
        quotas.pop("memory-percent", None)
    put(replace(changed, quota=quotas), pages, node)
    log("tenant-resized", **who(entry), was=was(entry, values), **values)
    return node.ledger.entries[entry.key]


def pages_of(entry: Entry, node: Node) -> Pages:
    """Return what says to `entry` what it has; NotResizable."""
    if not entry.holdings:
        raise NotResizable(f"{entry.title} has no GPU: {entry.why}")
    if not entry.shared:
        raise NotResizable(f"{entry.title} has whole cards; a quota is set for shares only")
    pages = node.tenants.pages.get(entry.key)
    if pages is None:
        raise NotResizable(
            f"the pages of {entry.title} are lost, or of another version of gpushare; "
            "start it again"
        )
    return pages


def put(changed: Entry, pages: Pages, node: Node) -> None:
    """Have the ledger, the pages, the driver and the scheduler say what `changed` does."""
    before = node.ledger.entries[changed.key]
    node.ledger.resize(changed)
    if _memory(before) != _memory(changed):
        _write_memory(changed, pages, node)
    if _compute(before) != _compute(changed):
        _write_cores(changed, pages, node)


def _compute(entry: Entry) -> tuple[object, ...]:
    cores = [(one.cores, one.reserved_cores) for one in entry.holdings]
    own = entry.is_set("policy")  # it stands above the card's
    return cores, entry.policy, own, entry.weight, entry.priority, entry.class_


def _memory(entry: Entry) -> list[tuple[int, int | None]]:
    return [(one.memory_bytes, one.memory_limit_bytes) for one in entry.holdings]


def was(entry: Entry, keys: Iterable[str]) -> dict[str, str]:
    """Return what `entry` had of `keys`, for the log."""
    return {key: entry.quota[key] for key in keys if key in entry.quota}


def who(entry: Entry) -> dict[str, str]:
    """Return what names `entry` in the log."""
    return {"tenant": entry.key, "name": entry.title}


def with_holdings(
    entry: Entry,
    holdings: tuple[Holding, ...],
    pages: Pages,
    node: Node,
    quota: Quota | None = None,
) -> Entry:
    """Return `entry` with `holdings`, which its cards have; `quota` is what was asked for them."""
    for number, holding in enumerate(holdings):
        if quota is not None:
            _refuse_below_context(quota, holding, pages.grant.context_bytes(number))
    # What a process held that has just died is in nobody's use; the next look would be too late.
    reap(entry, pages, Cgroups.mounted())
    _check_room(entry, holdings, node)
    return replace(entry, holdings=holdings)


def _write_memory(entry: Entry, pages: Pages, node: Node) -> None:
    for number, holding in enumerate(entry.holdings):
        # What it was lent it keeps until it is decided anew: it may be in the middle of using it.
        lent = min(pages.grant.limit_bytes(number), holding.most_bytes)
        hard_limit.change(entry, number, max(lent, holding.memory_bytes), node)
    lend(node)


def _write_cores(entry: Entry, pages: Pages, node: Node) -> None:
    for number, holding in enumerate(entry.holdings):
        pages.grant.set_cores(number, holding.cores)
    pages.grant.publish()
    shares.tell(node)


def _holding(holding: Holding, quota: Quota, entry: Entry) -> Holding:
    """Return `holding` under the new quota; a limit that was not named grows with the memory."""
    memory_bytes = quota.memory_bytes or holding.memory_bytes
    limit_bytes = quota.memory_limit_bytes or holding.memory_limit_bytes
    if limit_bytes is not None and limit_bytes < memory_bytes:
        if quota.memory_limit_bytes is not None:
            rule = f"is below the memory {exact_size(memory_bytes)} of {entry.title}"
            raise quota.refuse("memory-limit", rule, f"write {exact_size(memory_bytes)} or more")
        limit_bytes = memory_bytes
    return replace(holding, memory_bytes=memory_bytes, memory_limit_bytes=limit_bytes)


def _refuse_below_context(quota: Quota, holding: Holding, context_bytes: int) -> None:
    if quota.memory_bytes is not None and holding.memory_bytes <= context_bytes:
        rule = f"holds not even one CUDA context, {format_size(context_bytes)}"
        raise quota.refuse("memory", rule, "set more")


def _check_room(entry: Entry, holdings: tuple[Holding, ...], node: Node) -> None:
    more = {
        old.uuid: new.memory_bytes - old.memory_bytes
        for old, new in zip(entry.holdings, holdings, strict=True)
    }
    if any(size > 0 for size in more.values()):
        node.doubt.refuse()
    rooms = node.rooms()
    while make_room(more, rooms, node):
        rooms = node.rooms()
    wanted = {holding.uuid: holding.memory_bytes for holding in holdings}
    for room in rooms:
        if room.card.uuid in wanted:
            grows(room, entry.key, entry.title, wanted[room.card.uuid])


def _noted(quota: Quota, holdings: tuple[Holding, ...]) -> dict[str, str]:
    """Return what the operator has said by canonical key, with a limit that grew along."""
    values = {
        key: str(asked.value) if key in COMPUTE else exact_size(int(str(asked.value)))
        for key, asked in quota.asked.items()
    }
    limits = {holding.memory_limit_bytes for holding in holdings}
    if quota.memory_bytes is not None and limits == {quota.memory_bytes}:
        values["memory-limit"] = exact_size(quota.memory_bytes)
    return values
