# SPDX-License-Identifier: Apache-2.0
"""What manifests are converted to: which canonical key becomes which key, in which unit.

Tables like those of gpushare/quota/dialects, in the other direction. A converted text is read
again, and must make the same request (`verify` in convert/__init__.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gpushare.quota.keys import KEYS
from gpushare.quota.request import Value
from gpushare.quota.values import format_percent

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
    #: What sets a key that the target has no row for.
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
    if not less:
        raise Untranslatable(f"HAMi takes whole percent, and this is {format_percent(value)}")
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
