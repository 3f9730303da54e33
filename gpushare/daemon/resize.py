# SPDX-License-Identifier: Apache-2.0
"""The set operation: a running tenant's quota is changed, and stays so for its container's id."""

from __future__ import annotations

from typing import Final

from gpushare.daemon.ledger import Entry
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.placement import grows
from gpushare.daemon.processes import Cgroups
from gpushare.daemon.reap import reap
from gpushare.errors import UserError
from gpushare.quota import Quota, exact_size, format_size, read_quota

_MIB: Final = 1 << 20


class NotResizable(UserError):
    """The tenant cannot be given that quota as it is now."""


def set_memory(entry: Entry, text: str, node: Node) -> Entry:
    """Give `entry` the memory that `text` says, on each of its cards; NoRoom, QuotaError.

    Growing takes effect at once. Shrinking below what is used is refused: nothing could take back
    what a program has.
    """
    quota = read_quota({}, {}, options={"memory": text})
    wanted = quota.memory_bytes
    assert wanted is not None
    if not entry.holdings:
        raise NotResizable(f"{entry.title} has no GPU: {entry.why}")
    if not entry.shared:
        raise NotResizable(f"{entry.title} has whole cards; memory is set for shares only")
    _check_room(entry, wanted, node)
    _check_use(entry, quota, wanted, node)
    node.overrides.set(entry.id, "memory", exact_size(wanted))
    quotas = {**entry.quota, "memory": f"{text} operator"}
    resized = node.ledger.resize(entry.key, wanted, quotas)
    pages = node.tenants.pages.get(entry.key)
    if pages is not None:
        for number in range(len(entry.holdings)):
            pages.grant.set_memory(number, wanted)
        pages.grant.publish()
    log("tenant-resized", tenant=entry.key, name=entry.title, memory_bytes=wanted)
    return resized


def _check_room(entry: Entry, wanted: int, node: Node) -> None:
    rooms = {room.card.uuid: room for room in node.rooms()}
    for holding in entry.holdings:
        if holding.uuid in rooms:
            grows(rooms[holding.uuid], entry.title, wanted - holding.memory_bytes)


def _check_use(entry: Entry, quota: Quota, wanted: int, node: Node) -> None:
    """Refuse a quota that is full already, or too small for a context.

    A tenant that allocates at this very moment may still end up above: then it gets nothing more
    until it has given back enough.
    """
    pages = node.tenants.pages.get(entry.key)
    if pages is None:
        raise NotResizable(f"the pages of {entry.title} are lost; start it again")
    # What a process held that has just died is in nobody's use; the next look would be too late.
    reap(entry, pages, Cgroups.mounted())
    for number, account in enumerate(pages.accounts()):
        context_bytes = pages.grant.context_bytes(number)
        used = account.used_bytes(pages.grant.overhead_bytes(number))
        if wanted < used:
            fix = f"free some first, or set {exact_size(_rounded_up(used))} or more"
            raise quota.refuse(
                "memory", f"is less than {entry.title} uses, {format_size(used)}", fix
            )
        if wanted <= context_bytes:
            rule = f"holds not even one CUDA context, {format_size(context_bytes)}"
            raise quota.refuse("memory", rule, "set more")


def _rounded_up(size: int) -> int:
    return -(-size // _MIB) * _MIB
