# SPDX-License-Identifier: Apache-2.0
"""The effective request, before placement: nothing, a share of cards, or whole cards.

| request | effective request |
|---|---|
| nothing, or only the image's NVIDIA_VISIBLE_DEVICES | no GPU, and the line to add |
| `--gpus`, a CDI device, `devices` or `count`, no memory | whole cards |
| the same, with memory | that memory on each of those cards |
| memory, no cores | that memory, policy best-effort |
| cores, no memory | refused, unless the node has a default |
| memory and cores | policy fixed-share, unless the node has another default |
| cores 100 | whole cards |
| remote | the GPU of that server, and nothing of this node |
| both forms of memory | refused |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from gpushare.quota.errors import QuotaError, quoted
from gpushare.quota.keys import from_record, request_from
from gpushare.quota.node_settings import PLACEMENT, POLICY, NodeSetting
from gpushare.quota.request import (
    PROFILE,
    REMOTE,
    EngineCards,
    Layer,
    Percent,
    QuotaRequest,
    RequestedValue,
    RequestRecord,
    ScheduledAllocation,
    Value,
    ValueSource,
    requests_memory,
    requests_whole_cards,
)
from gpushare.quota.size import exact_size

SharingMode: TypeAlias = Literal["none", "shared", "exclusive", "remote"]

DEFAULT_PRIORITY: Final = 5  # of 0 to 9: a request without one is in the middle

NOTHING_REQUESTED: Final = "no GPU was requested"
# Not every docker has --annotation (24 is the first); of a pod the environment asks for nothing.
ADD: Final = "add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)"
_Which: TypeAlias = "tuple[int | None, tuple[str, ...], tuple[int, ...]]"
SHARES: Final = ("fixed-share", "burst-share")


@dataclass(frozen=True)
class Defaults:
    """The node's defaults for keys that a container does not set (`defaults` in gpushare.yaml).

    `shared_by_default`: a request for cards without memory becomes a share of `memory_bytes`. `own`
    are the keys that the section of a namespace or of users sets itself.
    """

    memory_bytes: int | None = None
    cores: int | None = None
    policy: str | None = None
    shared_by_default: bool = False
    placement: str | None = None
    own: frozenset[str] = field(default_factory=frozenset, compare=False)

    def labelled(self, settings: Mapping[str, NodeSetting]) -> Defaults:
        """Return the defaults with those of the node that its labels set."""
        labels = {
            key: settings[setting]["value"]
            for key, setting in (("policy", POLICY), ("placement", PLACEMENT))
            if setting in settings and key not in self.own
        }
        return replace(self, **labels)  # type: ignore[arg-type]

    def fill(self, layer: Layer, *, has_cards: bool = False) -> None:
        """Put into `layer` what it lacks; a request for nothing stays one.

        `has_cards`: the spec has cards before any request.
        """
        if REMOTE in layer or not (layer or has_cards):
            return
        if self.placement is not None:
            _put(layer, "placement", self.placement, self.placement)
        whole = requests_whole_cards(layer, has_cards=has_cards)
        fills = not whole or (self.shared_by_default and "cores" not in layer)
        if self.memory_bytes is not None and fills and not requests_memory(layer):
            _put(layer, "memory", exact_size(self.memory_bytes), self.memory_bytes)
        if requests_whole_cards(layer, has_cards=has_cards) or not requests_memory(layer):
            return
        if self.cores is not None and "cores" not in layer:
            _put(layer, "cores", str(self.cores), self.cores)
        if self.policy is not None and "cores" in layer:
            _put(layer, "policy", self.policy, self.policy)

    def beside(self, scheduled: ScheduledAllocation) -> Defaults:
        """Return the defaults that add nothing to what the scheduler allocated."""
        cores = self.cores if "cores" in scheduled.refinable else None
        return replace(self, cores=cores, memory_bytes=None, shared_by_default=False)


def _put(layer: Layer, key: str, text: str, value: Value) -> None:
    source = ValueSource("default", f"defaults.{key}")
    layer.setdefault(key, RequestedValue(text, value, source))


@dataclass(frozen=True)
class EffectiveRequest:
    """The request that placement has to find room for.

    `count` None means every card of the node; `devices` (indices or UUIDs) and `minors` (N of
    /dev/nvidiaN) narrow the choice when not empty. For `shared` exactly one of `memory_bytes` and
    `memory_percent` is set, per card; in a manifest neither may be, if a profile of the node says
    it. `cores` 0 reserves none. `why` says in a sentence what led
    here; for `none` it ends with what to add. `notes` are the request's.
    """

    kind: SharingMode
    why: str
    count: int | None = 1
    devices: tuple[str, ...] = ()
    minors: tuple[int, ...] = ()
    memory_bytes: int | None = None
    memory_percent: Percent | None = None
    memory_limit_bytes: int | None = None
    cores: int = 0
    policy: str = ""
    weight: int = 0  # 0: none requested
    priority: int = DEFAULT_PRIORITY
    class_: str = "offline"
    notes: tuple[str, ...] = ()


def resolve_request(
    request: QuotaRequest, *, visible: str | None = None, cards: EngineCards | None = None
) -> EffectiveRequest:
    """Return the effective request of `request`, by the table above.

    `visible` is visible_devices(env) and `cards` what the engine had put into the spec. QuotaError
    where the request contradicts itself or is not complete.
    """
    if not request.requested and cards is None:
        return EffectiveRequest(
            "none", _why_none(visible, request.notes), count=0, notes=request.notes
        )
    if request.remote is not None:
        _refuse_beside_remote(request, cards)
        why = f"the GPU of {request.remote}, a server of remote in gpushare.yaml"
        return EffectiveRequest("remote", why, count=0, notes=request.notes)
    _refuse_contradictions(request, cards)
    which = _which(request, cards)
    if request.cores == 100:
        return _whole("cores 100 is a whole card", request, which)
    if not request.has_memory():
        _refuse_incomplete(request, cards)
        return _whole("cards without memory are whole cards", request, which)
    has = ("memory", "memory-percent", PROFILE)
    memory = next(request.requested[key] for key in has if key in request.requested)
    of_node = memory.source.kind == "default"
    return EffectiveRequest(
        "shared",
        "the node's defaults.memory" if of_node else "memory is requested per card",
        *which,
        memory_bytes=request.memory_bytes,
        memory_percent=request.memory_percent,
        memory_limit_bytes=request.memory_limit_bytes,
        cores=request.cores or 0,
        policy=_policy(request),
        weight=request.weight or 0,
        priority=DEFAULT_PRIORITY if request.priority is None else request.priority,
        class_=request.class_ or "offline",
        notes=request.notes,
    )


def _whole(why: str, request: QuotaRequest, which: _Which) -> EffectiveRequest:
    return EffectiveRequest("exclusive", why, *which, cores=100, notes=request.notes)


def _why_none(visible: str | None, notes: tuple[str, ...]) -> str:
    if notes:
        return f"no GPU: {notes[0]}; to get one, use an annotation: gpushare.io/memory=4GiB"
    if visible is not None:
        return f"NVIDIA_VISIBLE_DEVICES={quoted(visible)} alone requests no GPU; to get one, {ADD}"
    return f"{NOTHING_REQUESTED}; to get one, {ADD}"


def _refuse_beside_remote(request: QuotaRequest, cards: EngineCards | None) -> None:
    """Refuse a request for a part of this node beside one for a remote GPU."""
    remote = request.requested[REMOTE].source
    for key in request.requested:
        if key != REMOTE:
            rule = (
                f"conflicts with {remote}: the quota of a remote GPU is set where its server runs"
            )
            raise request.refuse(key, rule, "remove it, and set it for the server there")
    if cards is not None:
        rule = f"conflicts with {cards.source}: a container has no cards beside a remote GPU"
        raise request.refuse(REMOTE, rule, "keep one of the two")


def _refuse_contradictions(request: QuotaRequest, cards: EngineCards | None) -> None:
    if request.memory_bytes is not None and request.memory_percent is not None:
        percent = request.requested["memory-percent"].source
        raise request.refuse(
            "memory", f"conflicts with {percent}: both set memory", "keep one of the two"
        )
    if request.memory_limit_bytes is not None:
        _check_memory_limit(request, request.memory_limit_bytes)
    if request.devices and request.count not in (None, len(request.devices)):
        rule = f"is not the number of cards in {request.requested['devices'].source}"
        raise request.refuse("count", rule, f"write {len(request.devices)}, or omit count")
    if cards is None:
        return
    # Of an index and a UUID it is unknown here whether they are one card's.
    if request.devices and (cards.devices or cards.minors) and cards.devices != request.devices:
        rule = f"conflicts with {cards.source}: both name cards"
        raise request.refuse("devices", rule, "keep one of the two")
    numbered = len(request.devices) or request.count
    if numbered is not None and _count(cards) not in (None, numbered):
        rule = f"conflicts with {cards.source}: different numbers of cards"
        key = "devices" if request.devices else "count"
        raise request.refuse(key, rule, "keep one of the two")


def _check_memory_limit(request: QuotaRequest, limit_bytes: int) -> None:
    if request.memory_bytes is None and request.memory_percent is None:
        fix = _to_add(request, "memory", "the guaranteed part")
        raise request.refuse("memory-limit", "sets a burst limit, but memory is not requested", fix)
    if request.memory_bytes is not None and limit_bytes < request.memory_bytes:
        rule = f"is below memory {exact_size(request.memory_bytes)}"
        raise request.refuse(
            "memory-limit", rule, f"write {exact_size(request.memory_bytes)} or more"
        )


def _count(cards: EngineCards) -> int | None:
    if cards.all_cards:
        return None
    return cards.count or len(cards.devices) or len(cards.minors)


def _which(request: QuotaRequest, cards: EngineCards | None) -> _Which:
    """Return (count, devices, minors); a gpushare key is more exact than an engine's request."""
    if request.devices:
        return len(request.devices), request.devices, ()
    if cards is not None and (cards.devices or cards.minors):
        return _count(cards), cards.devices, cards.minors
    if request.count is not None:
        return request.count, (), ()
    return (1 if cards is None else _count(cards)), (), ()


def _refuse_incomplete(request: QuotaRequest, cards: EngineCards | None) -> None:
    """Refuse what requests neither memory nor cards."""
    if request.cores is not None:
        rule = "requests cores without memory"
        raise request.refuse("cores", rule, _to_add(request, "memory", "e.g. 4GiB"))
    if cards is None and not request.devices and request.count is None:
        first = next(iter(request.requested))
        raise request.refuse(first, "requires a memory or card request", _to_add_share(request))


def _policy(request: QuotaRequest) -> str:
    if request.policy in SHARES and not request.cores:
        fix = _to_add(request, "cores", "e.g. 30")
        raise request.refuse("policy", "requires cores, but none are requested", fix)
    return request.policy or ("fixed-share" if request.cores else "best-effort")


def _to_add(request: QuotaRequest, key: str, what: str) -> str:
    """Return the advice to add `key`, in the form in which the rest was written."""
    if _of_command_line(request):
        return f"add --{key}, {what}"
    if any(value.source.kind == "claim" for value in request.requested.values()):
        return f"request {key} in the claim, {what}"
    return f"add gpushare.io/{key} or GPUSHARE_{key.upper()}, {what}"


def _to_add_share(request: QuotaRequest) -> str:
    return "add --memory 4GiB" if _of_command_line(request) else ADD


def _of_command_line(request: QuotaRequest) -> bool:
    return any(value.source.kind == "option" for value in request.requested.values())


def whole_cards_refused(request: QuotaRequest, cards: EngineCards | None, rule: str) -> QuotaError:
    """Return the error for unavailable whole cards, with the request syntax as the fix."""
    for key in ("devices", "count", "cores"):
        if key in request.requested:
            return request.refuse(key, rule, f"for a share, {_to_add_share(request)}")
    where = cards.source if cards is not None else "whole cards"
    return QuotaError(where, None, rule, f"for a share, {ADD}")


def change_recorded(
    record: RequestRecord,
    change: Mapping[str, RequestedValue],
    defaults: Defaults | None = None,
) -> QuotaRequest:
    """Return what a recorded request comes to with `change`, by canonical key, above all of it."""
    kept = {key: value for key, value in from_record(record).items() if key not in change}
    layer = {**kept, **change}
    if defaults is not None:
        defaults.fill(layer)
    return request_from(layer)
