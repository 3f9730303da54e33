# SPDX-License-Identifier: Apache-2.0
"""A request in the keys of a target, and the keys that the target does not support."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gpushare.manifest.convert.targets import (
    RenderedValue,
    Surface,
    Target,
    TargetKey,
    TargetLocation,
    Untranslatable,
)
from gpushare.quota.effective_request import EffectiveRequest, resolve_request
from gpushare.quota.request import PROFILE, Layer, QuotaRequest, Value
from gpushare.quota.size import exact_size

CanonicalValues: TypeAlias = "dict[str, Value]"

_BY_WEIGHT: Final = "native-burst-share"
_SIZES: Final = frozenset({"memory", "memory-limit"})


@dataclass(frozen=True)
class RenderedKey:
    """One key of the target with its text, and the canonical key that it stands for."""

    key: str
    name: str
    where: TargetLocation
    text: str


@dataclass(frozen=True)
class DroppedKey:
    """A canonical key that the target does not support, or only in part, and why."""

    key: str
    text: str
    why: str


@dataclass
class RenderedRequest:
    """The keys that are written for a container, and those that are not."""

    written: list[RenderedKey] = field(default_factory=list)
    lost: list[DroppedKey] = field(default_factory=list)


def render(layer: Layer, quota: QuotaRequest, target: Target, surface: Surface) -> RenderedRequest:
    """Return what `layer` is in `target`, in a file for `surface`.

    Untranslatable if the rest would be another request: then nothing is written.
    QuotaError where the request contradicts itself.
    """
    rows = target.words.get(surface)
    if rows is None:
        raise Untranslatable(
            f"{target.title} only takes requests of Kubernetes pods, and this file is for {surface}"
        )
    if quota.profile is not None and target.name != "gpushare":
        name = quota.requested[PROFILE].shown
        raise Untranslatable(f"only the node knows its profile {name}; request memory and cores")
    made = RenderedRequest()
    values = {key: requested.value for key, requested in layer.items()}
    values = _ADAPTERS[target.name](values, resolve_request(quota), made)
    order = [row.key for row in rows]
    for key in sorted(values, key=lambda key: order.index(key) if key in order else len(order)):
        value = values[key]
        text = layer[key].text if key in layer and layer[key].value == value else _text(key, value)
        of_key = [row for row in rows if row.key == key]
        found = _render_key(of_key, value, text if target.name == "gpushare" else None)
        if isinstance(found, str):
            why = found or f"{target.title} has no key for it"
            if key in target.elsewhere:
                why = f"{target.title} sets it by {target.elsewhere[key]}"
            made.lost.append(DroppedKey(key, text, why))
            continue
        row, rendered = found
        made.written.append(RenderedKey(key, row.name, row.where, rendered.text))
        if rendered.but:
            made.lost.append(DroppedKey(key, text, rendered.but))
    return made


def _render_key(
    rows: list[TargetKey], value: Value, text: str | None
) -> tuple[TargetKey, RenderedValue] | str:
    """Return the first row that supports `value`, or why none does."""
    why = ""
    for row in rows:
        try:
            return row, RenderedValue(text) if text is not None else row.write(value)
        except Untranslatable as error:
            why = str(error)
    return why


def _text(key: str, value: Value) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return exact_size(value) if key in _SIZES and isinstance(value, int) else str(value)


# --- targets that combine keys in another way ---


def _gpushare_values(
    values: CanonicalValues, effective: EffectiveRequest, _made: RenderedRequest
) -> CanonicalValues:
    if effective.kind == "shared" and values.get("count") == 1:
        return {key: value for key, value in values.items() if key != "count"}
    return values


def _hami_values(
    values: CanonicalValues, effective: EffectiveRequest, made: RenderedRequest
) -> CanonicalValues:
    """Cards are always counted, and a whole one is all of its compute."""
    kept = dict(values)
    devices = kept.pop("devices", None)
    if isinstance(devices, tuple):
        if all(name.startswith("GPU-") for name in devices) and "allow" not in kept:
            kept["allow"] = devices
        else:
            why = "HAMi selects cards by UUID: use those of gpushare ls, or omit the key"
            made.lost.append(DroppedKey("devices", ",".join(devices), why))
    first: CanonicalValues = {"count": effective.count or 1}
    if effective.kind == "exclusive":
        kept = {key: kept[key] for key in kept if key not in {"memory", "memory-percent"}}
        kept["cores"] = 100
    return {**first, **{key: value for key, value in kept.items() if key != "count"}}


def _qgpu_values(
    values: CanonicalValues, effective: EffectiveRequest, made: RenderedRequest
) -> CanonicalValues:
    """Whole cards are N x 100 of compute; a part is of one card, and has memory and compute."""
    kept = {key: value for key, value in values.items() if key != "count"}
    cards = effective.count or 1
    if effective.kind == "exclusive":
        kept = {key: kept[key] for key in kept if key not in {"memory", "memory-percent", "weight"}}
        if cards > 1 and kept.get("class") == "offline":
            _drop(kept, made, "class", "an offline pod of qGPU has one card")
        return {**kept, "cores": cards * 100}
    if cards > 1:
        raise Untranslatable(f"qGPU shares one card at a time, and {cards} are requested")
    if "memory" not in kept:
        raise Untranslatable("qGPU needs memory in GiB, not in percent; use memory")
    if kept.get("class") == "online":
        for key in ("cores", "weight"):
            _drop(kept, made, key, "an online pod of qGPU only requests memory")
    elif "cores" in kept:
        _drop(kept, made, "weight", "qGPU takes it instead of cores, not in addition")
    elif _greedy(kept):
        del kept["policy"]  # which qgpu-core-greedy is
    else:
        raise Untranslatable("qGPU needs compute in addition to memory; add gpushare.io/cores")
    return kept


def _greedy(kept: CanonicalValues) -> bool:
    """Whether a request is what qgpu-core-greedy means."""
    weight = kept.get("weight", 0)
    return isinstance(weight, int) and 0 < weight <= 100 and kept.get("policy") == _BY_WEIGHT


def _drop(kept: CanonicalValues, made: RenderedRequest, key: str, why: str) -> None:
    if key in kept:
        made.lost.append(DroppedKey(key, str(kept.pop(key)), why))


_ADAPTERS: Final[
    Mapping[str, Callable[[CanonicalValues, EffectiveRequest, RenderedRequest], CanonicalValues]]
] = {
    "gpushare": _gpushare_values,
    "hami": _hami_values,
    "qgpu": _qgpu_values,
}
