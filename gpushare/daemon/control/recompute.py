# SPDX-License-Identifier: Apache-2.0
"""A running tenant's part of compute, changed: by the rules by which it would be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gpushare.daemon.compute import shares
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import sets_aside
from gpushare.daemon.store.ledger import Entry
from gpushare.quota import give, read_again

KEYS: Final = ("cores", "policy", "weight", "priority", "class")


def recomputed(entry: Entry, asked: Mapping[str, str], node: Node) -> Entry:
    """Return `entry` with what `asked` says of compute, by canonical key; others are not read.

    No ceiling bounds it: those are for who asks, and this is the operator. QuotaError where it
    contradicts itself, NoRoom where its cards have not as many cores left.
    """
    asked = {key: text for key, text in asked.items() if key in KEYS}
    if not asked:
        return entry
    users, config = entry.isolation == "advice", node.config
    defaults = (config.users if users else config.terms_of(entry.namespace)).defaults
    memory = "memory" if "memory" in entry.quota else "memory-percent"
    before = {key: entry.quota[key] for key in (memory, *KEYS) if key in entry.quota}
    quota = read_again(before, asked, defaults)
    given = give(quota)
    if given.kind == "whole":
        rule = f"is a whole card, and {entry.title} has a share of one"
        fix = "set 99 or less; for a whole card start it again with GPUSHARE_CORES=100"
        raise quota.refuse("cores", rule, fix)
    rows = quota.rows() | {key: f"{text} operator" for key, text in asked.items()}
    changed = replace(
        entry,
        policy=given.policy,
        weight=given.weight,
        # What a ceiling put it down to at the start nobody asked for, and stays.
        priority=given.priority if "priority" in quota.asked else entry.priority,
        class_=given.class_,
        quota={**entry.quota, **rows},
        holdings=tuple(replace(holding, cores=given.cores) for holding in entry.holdings),
    )
    changed = shares.reserved(changed, shares.policies(node))
    for room in node.rooms():
        for holding in changed.holdings:
            if holding.uuid == room.card.uuid:
                sets_aside(room, entry.key, entry.title, holding.reserved_cores)
    return changed
