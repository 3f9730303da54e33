# SPDX-License-Identifier: Apache-2.0
"""How much managed memory a container may have beyond its quota, in host memory.

The driver moves managed memory between the card and the host by itself. So a part of it needs no
room on the card, but host memory: as much as the container may have is reserved for it, and all
containers together never get more than `oversubscribe.host_memory`.
"""

from __future__ import annotations

from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.quota.request import QuotaRequest
from gpushare.quota.size import exact_size, format_size
from gpushare.quota.values import oversubscribed_bytes

_KEY = "oversubscribe"
_SHOWN = 4  # containers that a refusal names


def managed_bytes(
    quota: QuotaRequest,
    own: frozenset[str],
    cards: int,
    memory_max_bytes: int,
    state: DaemonState,
) -> int:
    """Return the bytes that a request for `oversubscribe` may have on each of `cards`.

    `memory_max_bytes` is the container's own memory limit, which its host memory counts against; 0:
    it has none. QuotaError, and NoRoom if the tenants and granted tickets whose keys are not in
    `own` leave too little.
    """
    limits = state.config.oversubscribe
    if not quota.has_memory():
        rule = "is for shares: a whole card has no quota"
        raise quota.refuse(_KEY, rule, "request memory, or leave it out")
    if not limits.host_memory_bytes:
        rule = "is off on this node"
        fix = "set oversubscribe.host_memory in gpushare.yaml, or leave it out"
        raise quota.refuse(_KEY, rule, fix)
    wanted = oversubscribed_bytes(quota.oversubscribe or "")
    size = limits.most_bytes if wanted is None else wanted
    if size > limits.most_bytes:
        most = exact_size(limits.most_bytes)
        rule = f"exceeds {limits.most_source}, {most}"
        raise quota.refuse(_KEY, rule, f"use host:{most} or less")
    if memory_max_bytes and size * cards > memory_max_bytes:
        all_cards = f" on {cards} cards" if cards > 1 else ""
        needs = f"needs {exact_size(size * cards)} of host memory{all_cards}"
        rule = f"{needs}, and the container's memory limit is {exact_size(memory_max_bytes)}"
        fix = f"raise that limit, or use host:{exact_size(memory_max_bytes // cards)} or less"
        raise quota.refuse(_KEY, rule, fix)
    if size * cards > limits.host_memory_bytes:
        most = exact_size(limits.host_memory_bytes)
        needs = f"needs {exact_size(size * cards)} on {cards} cards"
        rule = f"{needs}, above oversubscribe.host_memory, {most}"
        fix = f"use host:{exact_size(limits.host_memory_bytes // cards)} or less"
        raise quota.refuse(_KEY, rule, fix)
    _check_host_memory(size * cards, own, state)
    return size


def _check_host_memory(size: int, own: frozenset[str], state: DaemonState) -> None:
    """Raise NoRoom if there are not `size` bytes beside the others than `own`."""
    most = state.config.oversubscribe.host_memory_bytes
    others = {
        one.title: reserved
        for one in state.ledger.holders
        if one.file not in own and (reserved := one.managed_bytes)
    }
    taken = sum(others.values())
    if taken + size <= most:
        return
    named = [f"{name} {format_size(bytes_)}" for name, bytes_ in list(others.items())[:_SHOWN]]
    more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    holders = f" ({', '.join(named)}{more})" if named else ""
    raise NoRoom(
        f"no host memory is left for {format_size(size)} of managed memory: {format_size(taken)} "
        f"of {format_size(most)} (oversubscribe.host_memory) is reserved{holders}; request less "
        "(oversubscribe), or see gpushare ps"
    )
