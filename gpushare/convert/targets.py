# SPDX-License-Identifier: Apache-2.0
"""What manifests are converted to: which canonical key becomes which key, in which unit.

Tables as those of gpushare/quota/dialects, the other way. What the reader of such a table makes of
the words that are written here is held against the request once more (convert/same.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gpushare.quota.keys import KEYS
from gpushare.quota.quota import Value

MIB: Final = 1 << 20
GIB: Final = 1 << 30

#: limit: of a container; annotation: of its pod, or of its own where there is none; env: of it.
Where: TypeAlias = Literal["limit", "annotation", "env"]
#: Where the file is run: the words of a target differ, for a limit means nothing to compose.
Surface: TypeAlias = Literal["kubernetes", "oci", "compose", "ecs"]


class Unsayable(Exception):
    """A value that a target has no word for; its text says why."""


@dataclass(frozen=True)
class Told:
    """A value in a target's word; `but` says what is not as it was asked."""

    text: str
    but: str = ""


Writer: TypeAlias = "Callable[[Value], Told]"


@dataclass(frozen=True)
class To:
    """One canonical key in a target: `name` is its key there, `write` makes its text."""

    key: str
    name: str
    where: Where
    write: Writer


@dataclass(frozen=True)
class Target:
    """Something to convert to. `dialect` is the name of its table, empty for our own keys.

    `words` are its rows by where the file is run; none: it cannot be said there. `scoped`: an
    annotation may name its container.
    """

    name: str
    title: str
    words: Mapping[Surface, tuple[To, ...]]
    dialect: str = ""
    scoped: bool = False
    #: What says a key that the target has no row for.
    elsewhere: Mapping[str, str] = field(default_factory=dict)


def _number(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _as_text(value: Value) -> Told:
    return Told(",".join(value) if isinstance(value, tuple) else str(value))


def _units(size: int, unit: str) -> Writer:
    """Return the writer of whole units of memory, of `size` bytes; a part of one is a whole one."""

    def write(value: Value) -> Told:
        units, rest = divmod(_number(value), size)
        if not rest:
            return Told(str(units))
        return Told(str(units + 1), f"is no whole number of {unit}: {units + 1} {unit} are written")

    return write


def _megabytes(value: Value) -> Told:
    told = _units(MIB, "MiB")(value)
    return Told(f"{told.text}m", told.but)


def _fives(value: Value) -> Told:
    cores = _number(value)
    if cores % 5 == 0:
        return Told(str(cores))
    more = min(cores - cores % 5 + 5, 95)  # 100 is a whole card, which nobody shares
    return Told(str(more), f"is no multiple of 5: {more} is written")


def _words(of: Mapping[Value, str], otherwise: str) -> Writer:
    def write(value: Value) -> Told:
        if value not in of:
            raise Unsayable(otherwise)
        return Told(of[value])

    return write


def _names(*, uuids: bool) -> Writer:
    """Return the writer of a list of models, or of one of UUIDs."""

    def write(value: Value) -> Told:
        assert isinstance(value, tuple)
        if any(item.startswith(("GPU-", "MIG-")) != uuids for item in value):
            raise Unsayable("has models and UUIDs in one list")
        return Told(",".join(value))

    return write


_HAMI_POLICY: Final = _words(
    {"fixed-share": "force", "burst-share": "default", "best-effort": "disable"},
    "is a policy that HAMi does not have",
)
_HAMI_PLACEMENT: Final = _words(
    {"binpack": "binpack", "spread": "spread", "topology": "topology-aware"},
    "is a placement that HAMi does not have",
)
_HAMI_MODE: Final = _words(
    {"interposer": "hami-core", "mig": "mig", "mps": "mps"},
    "is held by nothing that HAMi has",
)
_HAMI_PRIORITY: Final = _words({6: "1"}, "is a priority that HAMi does not have: 0 or 1")

_HAMI: Final[Mapping[Surface, tuple[To, ...]]] = {
    "kubernetes": (
        To("count", "nvidia.com/gpu", "limit", _as_text),
        To("memory", "nvidia.com/gpumem", "limit", _units(MIB, "MiB")),
        To("memory-percent", "nvidia.com/gpumem-percentage", "limit", _as_text),
        To("cores", "nvidia.com/gpucores", "limit", _as_text),
        To("priority", "nvidia.com/priority", "limit", _HAMI_PRIORITY),
        To("policy", "GPU_CORE_UTILIZATION_POLICY", "env", _HAMI_POLICY),
        To("allow", "nvidia.com/use-gputype", "annotation", _names(uuids=False)),
        To("allow", "nvidia.com/use-gpuuuid", "annotation", _names(uuids=True)),
        To("deny", "nvidia.com/nouse-gputype", "annotation", _names(uuids=False)),
        To("deny", "nvidia.com/nouse-gpuuuid", "annotation", _names(uuids=True)),
        To("placement", "hami.io/gpu-scheduler-policy", "annotation", _HAMI_PLACEMENT),
        To("backend", "nvidia.com/vgpu-mode", "annotation", _HAMI_MODE),
    ),
}

_QGPU: Final[Mapping[Surface, tuple[To, ...]]] = {
    "kubernetes": (
        To("memory", "tke.cloud.tencent.com/qgpu-memory", "limit", _units(GIB, "GiB")),
        To("cores", "tke.cloud.tencent.com/qgpu-core", "limit", _fives),
        To("weight", "tke.cloud.tencent.com/qgpu-core-greedy", "limit", _as_text),
        To("class", "tke.cloud.tencent.com/app-class", "annotation", _as_text),
    ),
}


def _ours(where: Where) -> tuple[To, ...]:
    return tuple(
        To(key.name, key.env if where == "env" else key.annotation, where, _as_text)
        for key in KEYS.values()
    )


TARGETS: Final = {
    target.name: target
    for target in (
        Target(
            "gpushare",
            "gpushare",
            {
                "kubernetes": _ours("annotation"),
                "oci": _ours("annotation"),
                "compose": _ours("env"),
                "ecs": _ours("env"),
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
