# SPDX-License-Identifier: Apache-2.0
"""The set operation taken back: a tenant has what its container asked for again.

It is done at once, or refused where others have been promised it meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from gpushare.daemon.control.recompute import KEYS as COMPUTE
from gpushare.daemon.control.recompute import restored
from gpushare.daemon.control.resize import NotResizable, pages_of, put, was, who, with_holdings
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.store.entry import Entry, Holding
from gpushare.quota import Quota, read_again

_MEMORY: Final = ("memory", "memory-percent")
_LIMIT: Final = "memory-limit"
_QUOTA: Final = ("memory", _LIMIT, *COMPUTE)  # of what a container may ask for


def reset_quota(entry: Entry, keys: Collection[str], node: Node) -> Entry:
    """Take back what an operator set of `keys`, canonical ones; all that he set for none.

    NoRoom, QuotaError, NotResizable: nothing was changed.
    """
    dropped = _set_of(entry, keys, node)
    changed = _back(entry, dropped, node) if dropped.intersection(_QUOTA) else entry
    node.overrides.forget(entry.id, *dropped)
    if changed is not entry:
        put(changed, pages_of(entry, node), node)
    log("tenant-resized", **who(entry), was=was(entry, dropped), reset=sorted(dropped))
    return node.ledger.entries[entry.key]


def _set_of(entry: Entry, keys: Collection[str], node: Node) -> set[str]:
    """Return what an operator has set of `keys`, with what goes along; NotResizable: nothing."""
    own = {*filter(entry.is_set, _QUOTA), *node.overrides.of(entry.id)}
    dropped = own.intersection(keys) if keys else own
    if not dropped:
        what = ", ".join(sorted(keys)) or "anything"
        raise NotResizable(f"nobody has set {what} of {entry.title}; see gpushare inspect")
    if "memory" in dropped and entry.quota.get(_LIMIT) == entry.quota["memory"]:
        dropped.add(_LIMIT)  # it grew along, and is nobody's own word
    return dropped


def _back(entry: Entry, dropped: Collection[str], node: Node) -> Entry:
    """Return `entry` as it would be without the operator's word on `dropped`."""
    if not entry.asked:
        raise NotResizable(
            f"what {entry.title} asked for was not noted when it was started, by an earlier "
            "version; set what it is to have"
        )
    changed = entry
    if "memory" in dropped or _LIMIT in dropped:
        memory = {*dropped}.intersection({"memory", _LIMIT})
        forms = memory.union(_MEMORY) if "memory" in memory else memory
        rows = {key: row for key, row in entry.quota.items() if key not in forms}
        asked = {key: row for key, row in entry.asked.items() if key in forms}
        quota = read_again(asked, {})
        holdings = tuple(_asked(holding, memory, quota, entry, node) for holding in entry.holdings)
        changed = replace(entry, quota={**rows, **asked})
        changed = with_holdings(changed, holdings, pages_of(entry, node), node)
    compute = [key for key in COMPUTE if key in dropped]
    return restored(changed, compute, node) if compute else changed


def _asked(
    holding: Holding, dropped: Collection[str], quota: Quota, entry: Entry, node: Node
) -> Holding:
    """Return `holding` with what the container itself asked for, `quota`, of what is dropped."""
    memory_bytes, limit_bytes = holding.memory_bytes, holding.memory_limit_bytes
    if "memory" in dropped:
        memory_bytes = _memory_bytes(holding, quota, entry, node)
    if _LIMIT in dropped:
        limit_bytes = quota.memory_limit_bytes
    if limit_bytes is not None:
        limit_bytes = max(limit_bytes, memory_bytes)
    return replace(holding, memory_bytes=memory_bytes, memory_limit_bytes=limit_bytes)


def _memory_bytes(holding: Holding, quota: Quota, entry: Entry, node: Node) -> int:
    if quota.memory_bytes is not None:
        return quota.memory_bytes
    card = node.loaded().card(holding.uuid)
    if quota.memory_percent is None or card is None:
        raise NotResizable(
            f"{entry.title} asked for no memory itself: without what was set it would have no "
            "share; set what it is to have"
        )
    return card.memory_bytes * quota.memory_percent // 100
