# SPDX-License-Identifier: Apache-2.0
"""The request of a container in canonical keys, each value with the place where it was written.

CUDA's base images carry `NVIDIA_VISIBLE_DEVICES=all`, so that variable alone says nothing about
what the caller wants: it gives no GPU, and is the reason shown by `gpushare ps -a`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypedDict

from gpushare.quota.errors import QuotaError

if TYPE_CHECKING:
    from fractions import Fraction

#: Of a card. A ratio stays exact until the card is known: 4 of 15 parts are 80/3 percent.
Percent: TypeAlias = "int | Fraction"
Value: TypeAlias = "Percent | str | tuple[str, ...]"
SourceKind: TypeAlias = Literal[
    "operator",
    "device plugin",  # of gpushare-node, as the scheduler allocated it
    "claim",  # a ResourceClaim, likewise; of a manifest: one that no scheduler has seen
    "annotation",
    "pod annotation",
    "env",
    "option",
    "default",
    # Of a manifest: no container runtime sees these.
    "limit",
    "label",
    "node label",
    "node annotation",
    "node file",
    "plugin",
    "task",
]


#: Sources that are the scheduler's allocation.
SCHEDULED: Final[frozenset[SourceKind]] = frozenset({"device plugin", "claim"})


@dataclass(frozen=True)
class ValueSource:
    """Where a value was written: `annotation gpushare.io/memory`, `env GPUSHARE_MEMORY`.

    A canonical key of a command line is its option, `--memory`; what was not requested comes from
    the node's configuration, `default defaults.memory`.
    """

    kind: SourceKind
    name: str

    def __str__(self) -> str:
        return f"--{self.name}" if self.kind == "option" else f"{self.kind} {self.name}"


@dataclass(frozen=True)
class RequestedValue:
    """One value: its canonical text, what it means, and where it was written.

    `written` is the original text, if its unit is another system's or docker's.
    """

    text: str
    value: Value
    source: ValueSource
    written: str = ""

    @property
    def shown(self) -> str:
        """The text as the user wrote it."""
        return self.written or self.text


PROFILE: Final = "profile"
#: The request of one source, by canonical key.
Layer: TypeAlias = "dict[str, RequestedValue]"


def requests_memory(layer: Layer) -> bool:
    """Whether memory is requested, in either form, or by a profile."""
    return not layer.keys().isdisjoint(("memory", "memory-percent", PROFILE))


def requests_whole_cards(layer: Layer, *, has_cards: bool = False) -> bool:
    """Whether whole cards are requested; `has_cards`: the spec has cards before any request."""
    if "cores" in layer:
        return layer["cores"].value == 100
    names_cards = has_cards or "count" in layer or "devices" in layer
    return names_cards and not requests_memory(layer)


REMOTE: Final = "remote"
IDLE_AFTER: Final = "idle-after"
TIME_LIMIT: Final = "time-limit"
#: Keys of compute, which say how a container shares a card with others.
COMPUTE_KEYS: Final = ("cores", "policy", "weight", "priority", "class")
#: Keys that a container may set of what the scheduler allocated to it.
REFINING_KEYS: Final = (*COMPUTE_KEYS, IDLE_AFTER, TIME_LIMIT)


@dataclass(frozen=True)
class ScheduledAllocation:
    """The allocation of a container by the scheduler of Kubernetes.

    `layer` stands above all other sources but the operator, which may narrow it. Of `refinable`,
    they may set a key that it does not contain.
    """

    layer: Layer
    refinable: frozenset[str] = frozenset()


class RecordedValue(TypedDict):
    """A requested value as the ledger keeps it: canonical text, and the kind of its source."""

    value: str
    source: SourceKind


#: The values of a request by canonical key, as the ledger keeps them: what JSON can hold.
RequestRecord: TypeAlias = Mapping[str, RecordedValue]


def to_record(values: Mapping[str, RequestedValue]) -> dict[str, RecordedValue]:
    """Return `values` as the ledger keeps them; keys.from_record reads them again."""
    return {
        key: {"value": value.text, "source": value.source.kind} for key, value in values.items()
    }


def recorded_text(value: RecordedValue) -> str:
    """Return `4GiB annotation`: a recorded value, for people."""
    return f"{value['value']} {value['source']}"


@dataclass(frozen=True)
class Diagnostic:
    """A value that is refused: why, and where its text is written.

    `source` leads to its position in a file; None where it has none. `applies` is False where the
    text is for another container of the pod: it is wrong, and refuses nothing of this one.
    """

    error: QuotaError
    source: ValueSource | None
    applies: bool = True


@dataclass(frozen=True)
class QuotaRequest:
    """The request of a container. A key that was not set is None (or an empty tuple).

    memory_bytes, memory_percent and memory_limit_bytes are per card; cores is percent of a card,
    1..100; devices are indices or UUIDs; allow and deny are models or UUIDs; compute_capability are
    comparisons, which all have to hold; priority 0 is the highest. `requested` has one entry per
    key that is set, by canonical name (`memory-limit`). `notes` say which values of a lower source
    were not applied, and why. `unnamed` is an annotation of the pod that names no container, if
    none names one: for the only container that requests a GPU. `before_operator` is the request
    without what the operator set.
    """

    memory_bytes: int | None = None
    memory_percent: Percent | None = None
    profile: str | None = None
    memory_limit_bytes: int | None = None
    cores: int | None = None
    count: int | None = None
    devices: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    compute_capability: tuple[str, ...] = ()
    policy: str | None = None
    weight: int | None = None
    priority: int | None = None
    class_: str | None = None
    placement: str | None = None
    oversubscribe: str | None = None
    backend: str | None = None
    idle_after_seconds: int | None = None
    time_limit_seconds: int | None = None
    remote: str | None = None
    requested: Mapping[str, RequestedValue] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    before_operator: Mapping[str, RequestedValue] = field(default_factory=dict)
    unnamed: RequestedValue | None = None

    def has_memory(self) -> bool:
        """Whether memory is requested, as a size, as a percentage or by a profile."""
        amounts = self.memory_bytes, self.memory_percent, self.profile
        return any(amount is not None for amount in amounts)

    def is_set(self, key: str) -> bool:
        """Whether the operator set `key`, so that no ceiling applies to it."""
        return key in self.requested and self.requested[key].source.kind == "operator"

    def refuse(self, key: str, rule: str, fix: str) -> QuotaError:
        """Return the error that refuses `key` as it was written; the caller raises it."""
        requested = self.requested.get(key)
        if requested is None:
            return QuotaError(key, None, rule, fix)
        return QuotaError(str(requested.source), requested.shown, rule, fix)


@dataclass(frozen=True)
class EngineCards:
    """The cards that an engine already put into a spec, in the form in which they were named.

    `count` N of any cards; or `devices`, indices or UUIDs; or `minors`, the N of /dev/nvidiaN; or
    `all_cards`. `source` is shown to the user, e.g. `docker run --gpus (nvidia hook)`.
    """

    source: str
    count: int | None = None
    devices: tuple[str, ...] = ()
    minors: tuple[int, ...] = ()
    all_cards: bool = False


VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"


def visible_devices(env: Mapping[str, str]) -> str | None:
    """Return what the variable requests; None where it is unset, empty, `void` or `none`."""
    value = env.get(VISIBLE_DEVICES, "").strip()
    return None if value in ("", "void", "none") else value
