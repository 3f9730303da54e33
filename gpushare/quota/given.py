# SPDX-License-Identifier: Apache-2.0
"""What is given for what is asked: nothing, a share of cards, or whole cards.

| asked | given |
|---|---|
| nothing, or only the image's NVIDIA_VISIBLE_DEVICES | no GPU, and the line to add |
| `--gpus`, a CDI device, `devices` or `count`, no memory | whole cards |
| the same, with memory | that memory of each of those cards |
| memory, no cores | that memory, policy best-effort |
| cores, no memory | refused, unless the node has a default |
| memory and cores | policy fixed-share, unless the node says otherwise |
| cores 100 | whole cards |
| both forms of memory | refused |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpushare.quota.cards import Cards
from gpushare.quota.errors import QuotaError, quoted
from gpushare.quota.quota import Quota
from gpushare.quota.size import exact_size

Kind: TypeAlias = Literal["none", "shared", "whole"]

DEFAULT_PRIORITY: Final = 5  # of 0 to 9: who asks for none is in the middle

# Not every docker has --annotation (24 is the first); of a pod the environment asks for nothing.
ADD: Final = "add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)"
_Which: TypeAlias = "tuple[int | None, tuple[str, ...], tuple[int, ...]]"
_SHARES: Final = ("fixed-share", "burst-share")


@dataclass(frozen=True)
class Given:
    """What placement has to find room for.

    `count` None means every card of the node; `devices` (indices or UUIDs) and `minors` (N of
    /dev/nvidiaN) narrow the choice when not empty. For `shared` exactly one of `memory_bytes` and
    `memory_percent` is set, per card; `cores` 0 reserves none. `why` says in a sentence what led
    here; for `none` it ends with what to add. `notes` are the quota's.
    """

    kind: Kind
    why: str
    count: int | None = 1
    devices: tuple[str, ...] = ()
    minors: tuple[int, ...] = ()
    memory_bytes: int | None = None
    memory_percent: int | None = None
    memory_limit_bytes: int | None = None
    cores: int = 0
    policy: str = ""
    weight: int = 0  # 0: none asked
    priority: int = DEFAULT_PRIORITY
    class_: str = "offline"
    notes: tuple[str, ...] = ()


def give(quota: Quota, *, visible: str | None = None, cards: Cards | None = None) -> Given:
    """Return what `quota` gets under the table above.

    `visible` is visible_devices(env) and `cards` what the engine had put into the spec. QuotaError
    where the request contradicts itself or is not complete.
    """
    if not quota.asked and cards is None:
        return Given("none", _why_none(visible, quota.notes), count=0, notes=quota.notes)
    _refuse_contradictions(quota, cards)
    which = _which(quota, cards)
    if quota.cores == 100:
        return _whole("cores 100 is a whole card", quota, which)
    if not quota.has_memory():
        _refuse_incomplete(quota, cards)
        return _whole("cards without memory are whole cards", quota, which)
    memory = quota.asked.get("memory") or quota.asked["memory-percent"]
    of_node = memory.source.kind == "default"
    return Given(
        "shared",
        "the node's defaults.memory" if of_node else "memory is asked per card",
        *which,
        memory_bytes=quota.memory_bytes,
        memory_percent=quota.memory_percent,
        memory_limit_bytes=quota.memory_limit_bytes,
        cores=quota.cores or 0,
        policy=_policy(quota),
        weight=quota.weight or 0,
        priority=DEFAULT_PRIORITY if quota.priority is None else quota.priority,
        class_=quota.class_ or "offline",
        notes=quota.notes,
    )


def _whole(why: str, quota: Quota, which: _Which) -> Given:
    return Given("whole", why, *which, cores=100, notes=quota.notes)


def _why_none(visible: str | None, notes: tuple[str, ...]) -> str:
    if notes:
        return f"no GPU: {notes[0]}; to get one, use an annotation: gpushare.io/memory=4GiB"
    if visible is not None:
        return f"NVIDIA_VISIBLE_DEVICES={quoted(visible)} alone asks for no GPU; to get one, {ADD}"
    return f"no GPU was asked for; to get one, {ADD}"


def _refuse_contradictions(quota: Quota, cards: Cards | None) -> None:
    if quota.memory_bytes is not None and quota.memory_percent is not None:
        percent = quota.asked["memory-percent"].source
        raise quota.refuse("memory", f"and {percent} both say memory", "keep one of the two")
    if quota.memory_limit_bytes is not None:
        _check_memory_limit(quota, quota.memory_limit_bytes)
    if quota.devices and quota.count not in (None, len(quota.devices)):
        rule = f"is not the number of cards that {quota.asked['devices'].source} names"
        raise quota.refuse("count", rule, f"write {len(quota.devices)}, or leave count out")
    if cards is None:
        return
    # Of an index and a UUID nobody here knows whether they are one card's.
    if quota.devices and (cards.devices or cards.minors) and cards.devices != quota.devices:
        rule = f"and {cards.source} both name cards"
        raise quota.refuse("devices", rule, "keep one of the two")
    numbered = len(quota.devices) or quota.count
    if numbered is not None and _count(cards) not in (None, numbered):
        rule = f"and {cards.source} say different numbers of cards"
        key = "devices" if quota.devices else "count"
        raise quota.refuse(key, rule, "keep one of the two")


def _check_memory_limit(quota: Quota, limit_bytes: int) -> None:
    if quota.memory_bytes is None and quota.memory_percent is None:
        fix = _to_add(quota, "memory", "the part that is guaranteed")
        raise quota.refuse("memory-limit", "is a burst above a memory that is not asked", fix)
    if quota.memory_bytes is not None and limit_bytes < quota.memory_bytes:
        rule = f"is below memory {exact_size(quota.memory_bytes)}"
        raise quota.refuse("memory-limit", rule, f"write {exact_size(quota.memory_bytes)} or more")


def _count(cards: Cards) -> int | None:
    if cards.all_cards:
        return None
    return cards.count or len(cards.devices) or len(cards.minors)


def _which(quota: Quota, cards: Cards | None) -> _Which:
    """Return (count, devices, minors); a gpushare key is more exact than an engine's request."""
    if quota.devices:
        return len(quota.devices), quota.devices, ()
    if cards is not None and (cards.devices or cards.minors):
        return _count(cards), cards.devices, cards.minors
    if quota.count is not None:
        return quota.count, (), ()
    return (1 if cards is None else _count(cards)), (), ()


def _refuse_incomplete(quota: Quota, cards: Cards | None) -> None:
    """Refuse what asks neither for memory nor for cards."""
    if quota.cores is not None:
        rule = "asks for cores, and for no memory"
        raise quota.refuse("cores", rule, _to_add(quota, "memory", "e.g. 4GiB"))
    if cards is None and not quota.devices and quota.count is None:
        first = next(iter(quota.asked))
        raise quota.refuse(first, "comes with no memory and no card", _to_add_share(quota))


def _policy(quota: Quota) -> str:
    if quota.policy in _SHARES and not quota.cores:
        fix = _to_add(quota, "cores", "e.g. 30")
        raise quota.refuse("policy", "needs cores, and none are asked", fix)
    return quota.policy or ("fixed-share" if quota.cores else "best-effort")


def _to_add(quota: Quota, key: str, what: str) -> str:
    """Return the advice to add `key`, in the form in which the rest was asked."""
    if _of_command_line(quota):
        return f"add --{key}, {what}"
    return f"add gpushare.io/{key} or GPUSHARE_{key.upper()}, {what}"


def _to_add_share(quota: Quota) -> str:
    return "add --memory 4GiB" if _of_command_line(quota) else ADD


def _of_command_line(quota: Quota) -> bool:
    return any(asked.source.kind == "option" for asked in quota.asked.values())


def refuse_whole(quota: Quota, cards: Cards | None, rule: str) -> QuotaError:
    """Return the error for whole cards that cannot be given, with the quota syntax as the fix."""
    for key in ("devices", "count", "cores"):
        if key in quota.asked:
            return quota.refuse(key, rule, f"for a share, {_to_add_share(quota)}")
    where = cards.source if cards is not None else "whole cards"
    return QuotaError(where, None, rule, f"for a share, {ADD}")
