# SPDX-License-Identifier: Apache-2.0
"""The targets of conversions: which canonical key becomes which key, in which unit.

Tables like those of gpushare/quota/dialects, in the other direction. A converted text is read
again, and must make the same request (`verify` in convert/__init__.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gpushare.quota.effective_request import EffectiveRequest, resolve_request
from gpushare.quota.keys import KEYS, format_percent
from gpushare.quota.request import PROFILE, Layer, QuotaRequest, Value
from gpushare.quota.size import exact_size

MIB: Final = 1 << 20
GIB: Final = 1 << 30

#: limit: of a container; annotation: of its pod, or of its own where there is none; env: of it.
TargetLocation: TypeAlias = Literal["limit", "annotation", "env"]
#: Where the file is run: the keys of a target differ, because compose has no limits.
Surface: TypeAlias = Literal["kubernetes", "oci", "compose", "ecs"]


Writer: TypeAlias = "Callable[[Value], RenderedValue]"


class Untranslatable(Exception):
    """A value that a target cannot express; the text says why."""


@dataclass(frozen=True)
class RenderedValue:
    """A value as a target writes it; `but` says how it differs from the request."""

    text: str
    but: str = ""


@dataclass(frozen=True)
class TargetKey:
    """One canonical key in a target: `name` is its key there, `write` makes its text."""

    key: str
    name: str
    where: TargetLocation
    write: Writer


@dataclass(frozen=True)
class Target:
    """Something to convert to. `dialect` is the name of its table, empty for our own keys.

    `words` are its rows by where the file is run; without any it cannot be used there. `scoped`: an
    annotation may name its container.
    """

    name: str
    title: str
    words: Mapping[Surface, tuple[TargetKey, ...]]
    dialect: str = ""
    scoped: bool = False
    #: The way to set a key that the target has no row for.
    elsewhere: Mapping[str, str] = field(default_factory=dict)


def _number(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _as_text(value: Value) -> RenderedValue:
    return RenderedValue(",".join(value) if isinstance(value, tuple) else str(value))


def _units(size: int, unit: str) -> Writer:
    """Return the writer of whole units of memory, of `size` bytes; a part of one is a whole one."""

    def write(value: Value) -> RenderedValue:
        units, rest = divmod(_number(value), size)
        if not rest:
            return RenderedValue(str(units))
        return RenderedValue(
            str(units + 1), f"not a whole number of {unit}; rounded up to {units + 1} {unit}"
        )

    return write


def _multiple_of_five(value: Value) -> RenderedValue:
    cores = _number(value)
    if cores % 5 == 0:
        return RenderedValue(str(cores))
    more = min(cores - cores % 5 + 5, 95)  # 100 is a whole card, which is not shared
    return RenderedValue(str(more), f"not a multiple of 5; rounded up to {more}")


def _whole_percent(value: Value) -> RenderedValue:
    assert not isinstance(value, (str, tuple))
    less = int(value)
    if less == value:
        return RenderedValue(str(less))
    return RenderedValue(str(less), f"{format_percent(value)}, rounded down to {less}")


def _one_of(of: Mapping[Value, str], otherwise: str) -> Writer:
    def write(value: Value) -> RenderedValue:
        if value not in of:
            raise Untranslatable(otherwise)
        return RenderedValue(of[value])

    return write


def _model_or_uuid_list(*, uuids: bool) -> Writer:
    """Return the writer of a list of models, or of one of UUIDs."""

    def write(value: Value) -> RenderedValue:
        assert isinstance(value, tuple)
        if any(item.startswith(("GPU-", "MIG-")) != uuids for item in value):
            raise Untranslatable("mixes models and UUIDs in one list")
        return RenderedValue(",".join(value))

    return write


_HAMI_POLICY: Final = _one_of(
    {"fixed-share": "force", "burst-share": "default", "best-effort": "disable"},
    "HAMi does not have this policy",
)
_HAMI_PLACEMENT: Final = _one_of(
    {"binpack": "binpack", "spread": "spread", "topology": "topology-aware"},
    "HAMi does not have this placement",
)
_HAMI_MODE: Final = _one_of(
    {"interposer": "hami-core", "mig": "mig", "mps": "mps"},
    "HAMi does not have this backend",
)
_HAMI_PRIORITY: Final = _one_of({6: "1"}, "HAMi only has the priorities 0 and 1")

_HAMI: Final[Mapping[Surface, tuple[TargetKey, ...]]] = {
    "kubernetes": (
        TargetKey("count", "nvidia.com/gpu", "limit", _as_text),
        TargetKey("memory", "nvidia.com/gpumem", "limit", _units(MIB, "MiB")),
        TargetKey("memory-percent", "nvidia.com/gpumem-percentage", "limit", _whole_percent),
        TargetKey("cores", "nvidia.com/gpucores", "limit", _as_text),
        TargetKey("priority", "nvidia.com/priority", "limit", _HAMI_PRIORITY),
        TargetKey("policy", "GPU_CORE_UTILIZATION_POLICY", "env", _HAMI_POLICY),
        TargetKey(
            "allow", "nvidia.com/use-gputype", "annotation", _model_or_uuid_list(uuids=False)
        ),
        TargetKey("allow", "nvidia.com/use-gpuuuid", "annotation", _model_or_uuid_list(uuids=True)),
        TargetKey(
            "deny", "nvidia.com/nouse-gputype", "annotation", _model_or_uuid_list(uuids=False)
        ),
        TargetKey(
            "deny", "nvidia.com/nouse-gpuuuid", "annotation", _model_or_uuid_list(uuids=True)
        ),
        TargetKey("placement", "hami.io/gpu-scheduler-policy", "annotation", _HAMI_PLACEMENT),
        TargetKey("backend", "nvidia.com/vgpu-mode", "annotation", _HAMI_MODE),
    ),
}

_QGPU: Final[Mapping[Surface, tuple[TargetKey, ...]]] = {
    "kubernetes": (
        TargetKey("memory", "tke.cloud.tencent.com/qgpu-memory", "limit", _units(GIB, "GiB")),
        TargetKey("cores", "tke.cloud.tencent.com/qgpu-core", "limit", _multiple_of_five),
        TargetKey("weight", "tke.cloud.tencent.com/qgpu-core-greedy", "limit", _as_text),
        TargetKey("class", "tke.cloud.tencent.com/app-class", "annotation", _as_text),
    ),
}


def _gpushare_keys(where: TargetLocation) -> tuple[TargetKey, ...]:
    return tuple(
        TargetKey(key.name, key.env if where == "env" else key.annotation, where, _as_text)
        for key in KEYS.values()
    )


TARGETS: Final = {
    target.name: target
    for target in (
        Target(
            "gpushare",
            "gpushare",
            {
                "kubernetes": _gpushare_keys("annotation"),
                "oci": _gpushare_keys("annotation"),
                "compose": _gpushare_keys("env"),
                "ecs": _gpushare_keys("env"),
            },
            scoped=True,
        ),
        Target("hami", "HAMi", _HAMI, "hami"),
        Target(
            "qgpu",
            "qGPU",
            _QGPU,
            "qgpu",
            elsewhere={
                "policy": "the label tke.cloud.tencent.com/qgpu-schedule-policy of the node"
            },
        ),
    )
}


# --- a request in the keys of a target, and the keys that the target does not support ---

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
        rendered_key = _render_key(of_key, value, text if target.name == "gpushare" else None)
        if isinstance(rendered_key, str):
            why = rendered_key or f"{target.title} has no key for it"
            if key in target.elsewhere:
                why = f"{target.title} sets it by {target.elsewhere[key]}"
            made.lost.append(DroppedKey(key, text, why))
            continue
        row, rendered = rendered_key
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
    values: CanonicalValues, effective: EffectiveRequest, _rendered: RenderedRequest
) -> CanonicalValues:
    if effective.kind == "shared" and values.get("count") == 1:
        return {key: value for key, value in values.items() if key != "count"}
    return values


def _hami_values(
    values: CanonicalValues, effective: EffectiveRequest, rendered: RenderedRequest
) -> CanonicalValues:
    """Cards are always counted, and a whole one is all of its compute."""
    kept = dict(values)
    devices = kept.pop("devices", None)
    if isinstance(devices, tuple):
        if all(name.startswith("GPU-") for name in devices) and "allow" not in kept:
            kept["allow"] = devices
        else:
            why = "HAMi selects cards by UUID: use those of gpushare ls, or omit the key"
            rendered.lost.append(DroppedKey("devices", ",".join(devices), why))
    first: CanonicalValues = {"count": effective.count or 1}
    if effective.kind == "exclusive":
        kept = {key: kept[key] for key in kept if key not in {"memory", "memory-percent"}}
        kept["cores"] = 100
    return {**first, **{key: value for key, value in kept.items() if key != "count"}}


def _qgpu_values(
    values: CanonicalValues, effective: EffectiveRequest, rendered: RenderedRequest
) -> CanonicalValues:
    """Whole cards are N x 100 of compute; a part is of one card, and has memory and compute."""
    kept = {key: value for key, value in values.items() if key != "count"}
    cards = effective.count or 1
    if effective.kind == "exclusive":
        kept = {key: kept[key] for key in kept if key not in {"memory", "memory-percent", "weight"}}
        if cards > 1 and kept.get("class") == "offline":
            _drop(kept, rendered, "class", "an offline pod of qGPU has one card")
        return {**kept, "cores": cards * 100}
    if cards > 1:
        raise Untranslatable(f"qGPU shares one card at a time, and {cards} are requested")
    if "memory" not in kept:
        raise Untranslatable("qGPU needs memory in GiB, not in percent; use memory")
    if kept.get("class") == "online":
        for key in ("cores", "weight"):
            _drop(kept, rendered, key, "an online pod of qGPU only requests memory")
    elif "cores" in kept:
        _drop(kept, rendered, "weight", "qGPU takes it instead of cores, not in addition")
    elif _greedy(kept):
        del kept["policy"]  # which qgpu-core-greedy is
    else:
        raise Untranslatable("qGPU needs compute in addition to memory; add gpushare.io/cores")
    return kept


def _greedy(kept: CanonicalValues) -> bool:
    """Whether a request is what qgpu-core-greedy means."""
    weight = kept.get("weight", 0)
    return isinstance(weight, int) and 0 < weight <= 100 and kept.get("policy") == _BY_WEIGHT


def _drop(kept: CanonicalValues, rendered: RenderedRequest, key: str, why: str) -> None:
    if key in kept:
        rendered.lost.append(DroppedKey(key, str(kept.pop(key)), why))


_ADAPTERS: Final[
    Mapping[str, Callable[[CanonicalValues, EffectiveRequest, RenderedRequest], CanonicalValues]]
] = {
    "gpushare": _gpushare_values,
    "hami": _hami_values,
    "qgpu": _qgpu_values,
}
