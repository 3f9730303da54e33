# SPDX-License-Identifier: Apache-2.0
"""A running tenant's part of compute, changed: by the rules by which it would be made."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from gpushare.daemon.compute import shares
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import sets_aside
from gpushare.daemon.store.entry import Entry
from gpushare.quota import Given, Quota, Terms, give, read_again

KEYS: Final = ("cores", "policy", "weight", "priority", "class")
_MEMORY: Final = ("memory", "memory-percent")
_WEIGHED: Final = "native-burst-share"


def recomputed(entry: Entry, asked: Mapping[str, str], node: Node) -> Entry:
    """Return `entry` with what `asked` says of compute, by canonical key; others are not read.

    No ceiling bounds it: those are for who asks, and this is the operator. QuotaError where it
    contradicts itself or does nothing, NoRoom where its cards have not as many cores left.
    """
    asked = {key: text for key, text in asked.items() if key in KEYS}
    if not asked:
        return entry
    quota = read_again(_rows(entry.quota, KEYS), asked, terms_of(entry, node).defaults)
    given = _share(quota, entry)
    rows = quota.rows() | {key: f"{text} operator" for key, text in asked.items()}
    changed = _with(entry, given, {**entry.quota, **rows})
    if "priority" not in quota.asked:
        # What a ceiling put it down to at the start nobody asked for, and stays.
        changed = replace(changed, priority=entry.priority)
    changed = _reserved(changed, node)
    if "weight" in asked:
        _refuse_idle_weight(changed, quota, node)
    return changed


def restored(entry: Entry, dropped: Collection[str], node: Node) -> Entry:
    """Return `entry` without the operator's word on `dropped`, keys of compute.

    NoRoom where what it asked for is others' by now; QuotaError where it does not go with what the
    operator left.
    """
    kept = [key for key in KEYS if key not in dropped]
    rows = _rows(entry.quota, kept) | {
        key: entry.asked[key] for key in dropped if key in entry.asked
    }
    terms = terms_of(entry, node)
    quota = read_again(rows, {}, terms.defaults)
    given = terms.ceilings.put_down(quota, _share(quota, entry))
    others = {key: row for key, row in entry.quota.items() if key not in dropped}
    return _reserved(_with(entry, given, {**others, **quota.rows()}), node)


def terms_of(entry: Entry, node: Node) -> Terms:
    """Return what the node holds a tenant to."""
    return (
        node.config.users if entry.isolation == "advice" else node.config.terms_of(entry.namespace)
    )


def _rows(quota: Mapping[str, str], keys: Collection[str]) -> dict[str, str]:
    """Return the rows of `keys`, with the memory, for there is no share without any."""
    memory = next((key for key in _MEMORY if key in quota), _MEMORY[0])
    return {key: quota[key] for key in (memory, *keys) if key in quota}


def _share(quota: Quota, entry: Entry) -> Given:
    given = give(quota)
    if given.kind == "whole":
        rule = f"is a whole card, and {entry.title} has a share of one"
        fix = "set 99 or less; for a whole card start it again with GPUSHARE_CORES=100"
        raise quota.refuse("cores", rule, fix)
    return given


def _with(entry: Entry, given: Given, rows: Mapping[str, str]) -> Entry:
    return replace(
        entry,
        policy=given.policy,
        weight=given.weight,
        priority=given.priority,
        class_=given.class_,
        quota=rows,
        holdings=tuple(replace(holding, cores=given.cores) for holding in entry.holdings),
    )


def _reserved(changed: Entry, node: Node) -> Entry:
    """Return `changed` with the cores set aside that go with it; NoRoom."""
    changed = shares.reserved(changed, shares.policies(node))
    for room in node.rooms():
        for holding in changed.holdings:
            if holding.uuid == room.card.uuid:
                sets_aside(room, changed.key, changed.title, holding.reserved_cores)
    return changed


def _refuse_idle_weight(changed: Entry, quota: Quota, node: Node) -> None:
    """Refuse a weight that nothing would come of."""
    held = {
        shares.policy_of(changed, holding, node.policy_of(holding.uuid))
        for holding in changed.holdings
    }
    if _WEIGHED not in held:
        rule = (
            f"counts under {_WEIGHED} only, and {changed.title} is under {', '.join(sorted(held))}"
        )
        raise quota.refuse("weight", rule, f"add --policy {_WEIGHED}")
