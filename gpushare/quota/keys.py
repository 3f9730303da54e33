# SPDX-License-Identifier: Apache-2.0
"""The canonical keys: their names, what a value may be, which of two values requests less."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.request import (
    Diagnostic,
    Layer,
    QuotaRequest,
    RequestedValue,
    RequestRecord,
    Value,
    ValueSource,
)
from gpushare.quota.size import parse_size

ANNOTATION_PREFIX: Final = "gpushare.io/"
ENV_PREFIX: Final = "GPUSHARE_"
MAX_CARDS: Final = 16  # GPUSHARE_MAX_CARDS of gpushare_abi.h
POLICIES: Final = ("fixed-share", "burst-share", "best-effort", "native-burst-share")

# Environment variables of ours that request nothing.
_NOT_QUOTAS: Final = frozenset(
    {
        "GPUSHARE_DISABLE",
        "GPUSHARE_LOG",
        "GPUSHARE_SIM_DEVICE",
        "GPUSHARE_SIM_TRACE",
        "GPUSHARE_SOCKET",
        "GPUSHARE_TENANT_DIR",
    }
)
# A Service called gpushare gives every pod of its namespace variables of this name, in the form
# that Docker's links once had: GPUSHARE_SERVICE_HOST, GPUSHARE_PORT_80_TCP_ADDR.
_SERVICE: Final = re.compile(
    r"GPUSHARE_(.*SERVICE_HOST|.*SERVICE_PORT.*|.*PORT|.*PORT_[0-9].*)", re.DOTALL
)

_CARD: Final = re.compile(r"[0-9]{1,3}|(GPU|MIG)-[0-9A-Za-z-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Key:
    """One canonical key and the field of QuotaRequest that it fills.

    `narrow(higher, lower)` is what is left of a higher source's value when a lower source says
    another; it never requests more than `higher`. `meaning` is for the reference: what it is, and
    how far this version goes with it.
    """

    name: str
    field: str
    parse: Callable[[str], Value]
    narrow: Callable[[Value, Value], Value]
    meaning: str

    @property
    def annotation(self) -> str:
        """The annotation that requests it."""
        return ANNOTATION_PREFIX + self.name

    @property
    def env(self) -> str:
        """The environment variable that requests it."""
        return ENV_PREFIX + self.name.upper().replace("-", "_")


def _number(low: int, high: int, what: str) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        stripped = text.strip()
        if not re.fullmatch(r"[0-9]{1,9}", stripped, re.ASCII):
            raise BadValue(f"is not {what}", f"write a whole number from {low} to {high}")
        value = int(stripped)
        if not low <= value <= high:
            raise BadValue(f"is not {what}", f"write a whole number from {low} to {high}")
        return value

    return parse


def _choice(*choices: str) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        value = text.strip()
        if value not in choices:
            raise BadValue("is not a valid value", "write " + _either(choices))
        return value

    return parse


def _either(choices: tuple[str, ...]) -> str:
    return choices[0] if len(choices) == 1 else ", ".join(choices[:-1]) + f" or {choices[-1]}"


def _list(text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise BadValue("has an empty item in its list", "separate the names with single commas")
    if len(set(items)) != len(items):
        raise BadValue("lists a name twice", "write each name once")
    return items


def _devices(text: str) -> Value:
    items = _list(text)
    if len(items) > MAX_CARDS:
        raise BadValue("names too many cards", f"write at most {MAX_CARDS}")
    for item in items:
        if not _CARD.fullmatch(item):
            raise BadValue(
                "is not a list of cards", "write indices or UUIDs, e.g. 0,2 or GPU-4f1c..."
            )
    return tuple(str(int(item)) if item.isdigit() else item for item in items)


def _models(text: str) -> Value:
    return _list(text)


def _less(higher: Value, lower: Value) -> Value:
    assert isinstance(higher, int)
    assert isinstance(lower, int)
    return min(higher, lower)


def _later(higher: Value, lower: Value) -> Value:
    assert isinstance(higher, int)
    assert isinstance(lower, int)
    return max(higher, lower)


def _same(higher: Value, _lower: Value) -> Value:
    return higher


def _prefer(modest: str) -> Callable[[Value, Value], Value]:
    return lambda higher, lower: lower if lower == modest else higher


def _subset(higher: Value, lower: Value) -> Value:
    assert isinstance(higher, tuple)
    assert isinstance(lower, tuple)
    return lower if set(lower) <= set(higher) else higher


def _union(higher: Value, lower: Value) -> Value:
    assert isinstance(higher, tuple)
    assert isinstance(lower, tuple)
    return higher + tuple(item for item in lower if item not in higher)


def is_quota(variable: str) -> bool:
    """Whether an environment variable of this name is read as a quota, its key known or not."""
    return (
        variable.startswith(ENV_PREFIX)
        and variable not in _NOT_QUOTAS
        and not _SERVICE.fullmatch(variable)
    )


_PERCENT: Final = _number(1, 100, "a percentage of a card's memory")
_CORES: Final = _number(1, 100, "a share of a card in percent")
_COUNT: Final = _number(1, MAX_CARDS, "a number of cards")

KEYS: Final[Mapping[str, Key]] = {
    key.name: key
    for key in (
        Key("memory", "memory_bytes", parse_size, _less, "Memory of each card."),
        Key(
            "memory-percent",
            "memory_percent",
            _PERCENT,
            _less,
            "Memory of each card, in percent of the card's memory.",
        ),
        Key(
            "memory-limit",
            "memory_limit_bytes",
            parse_size,
            _less,
            "Burst limit: how much memory it may use on each card while the card has "
            "unallocated memory.",
        ),
        Key(
            "cores",
            "cores",
            _CORES,
            _less,
            "Percent of a card's compute: a guarantee, a cap or a weight, depending on the policy. "
            "100 is a whole card.",
        ),
        Key(
            "count",
            "count",
            _COUNT,
            _less,
            "Number of cards; whole cards if no memory is requested.",
        ),
        Key(
            "devices",
            "devices",
            _devices,
            _subset,
            "Cards to use; whole cards if no memory is requested.",
        ),
        Key("allow", "allow", _models, _subset, "Only cards of these models or UUIDs."),
        Key("deny", "deny", _models, _union, "No cards of these models or UUIDs."),
        Key(
            "policy",
            "policy",
            _choice(*POLICIES),
            _same,
            "fixed-share: its cores and no more. burst-share: its cores, and more while other "
            "containers leave compute idle. best-effort: an equal part of the compute that is "
            "not guaranteed to others. native-burst-share: a part of that compute by weight.",
        ),
        Key(
            "weight",
            "weight",
            _number(1, 1000, "a weight"),
            _less,
            "Relative weight under native-burst-share: a multiple of the part of a best-effort "
            "container. Default: its cores.",
        ),
        Key(
            "priority",
            "priority",
            _number(0, 9, "a priority"),
            _later,
            "Strict priority among offline containers: 0 is served first, and a container waits "
            "while one with a higher priority wants the card. Default: 5.",
        ),
        Key(
            "class",
            "class_",
            _choice("online", "offline"),
            _prefer("offline"),
            "online: a latency-sensitive container that never waits for its turn; the others wait "
            "while it works (under fixed-share only as long as its cores last). Default: offline.",
        ),
        Key(
            "placement",
            "placement",
            _choice("binpack", "spread", "topology"),
            _same,
            "Use the fullest card that fits (binpack), the emptiest (spread), or several cards "
            "that are close to each other (topology). Default: binpack for a share of one card, "
            "otherwise topology.",
        ),
        Key(
            "numa",
            "numa",
            _choice("none", "bind"),
            _prefer("bind"),
            "bind: use only those CPUs and NUMA nodes of the container's set that its cards are "
            "on. Default: none.",
        ),
        Key(
            "oversubscribe",
            "oversubscribe",
            _choice("none", "host"),
            _prefer("none"),
            "Use host memory beyond the card's memory. host is refused in this version.",
        ),
        Key(
            "backend",
            "backend",
            _choice("driver", "mig", "interposer", "mps", "exclusive"),
            _same,
            "Backend that enforces the quota: driver (refused if the driver has no limits of its "
            "own), interposer, or exclusive, a whole card. Default: the best available. mps "
            "and mig are refused in this version.",
        ),
    )
}
#: Keys that only an operator may set, on a running container (`gpushare set`).
OPERATORS: Final[Mapping[str, Key]] = {
    "over-quota-action": Key(
        "over-quota-action",
        "over_quota_action",
        _choice("observe", "warn", "freeze", "kill"),
        _same,
        "Action when the container exceeds its memory quota by bypassing the interposer library.",
    )
}
BY_ENV: Final[Mapping[str, Key]] = {key.env: key for key in KEYS.values()}


def read(name: str, source: ValueSource, text: str, known: Mapping[str, Key]) -> RequestedValue:
    """Return what `text` requests under `name`; QuotaError for an unknown key or a bad value."""
    key = known.get(name)
    if key is None:
        raise _unknown(name, source, text, known)
    try:
        return RequestedValue(text, key.parse(text), source)
    except BadValue as bad:
        raise QuotaError(str(source), text, bad.rule, bad.fix) from bad


class Diagnostics(list[Diagnostic]):
    """The problems of one request, in the order in which they were found."""

    def read(
        self, name: str, source: ValueSource, text: str, known: Mapping[str, Key]
    ) -> RequestedValue | None:
        """Return what `text` requests under `name`; None where it is refused, which is added."""
        try:
            return read(name, source, text, known)
        except QuotaError as error:
            self.append(Diagnostic(error, source))
            return None

    def raise_first(self) -> None:
        """Raise the first problem that refuses this container."""
        for one in self:
            if one.applies:
                raise one.error


def from_record(record: RequestRecord) -> Layer:
    """Return the values that `to_record` recorded; each source has the name of its key."""
    return {
        key: read(key, ValueSource(one["source"], key), one["value"], KEYS)
        for key, one in record.items()
    }


def request_from(values: Mapping[str, RequestedValue]) -> QuotaRequest:
    """Return the request that `values` make, by canonical key."""
    fields = {KEYS[key].field: one.value for key, one in values.items()}
    return QuotaRequest(**fields, requested=values)  # type: ignore[arg-type]


def _unknown(name: str, source: ValueSource, text: str, known: Mapping[str, Key]) -> QuotaError:
    shown = source.name[: len(source.name) - len(name)]
    folded = {key.casefold(): key for key in known}
    close = get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    fix = f"did you mean {shown}{folded[close[0]]}?" if close else "the keys are " + ", ".join(KEYS)
    return QuotaError(str(source), text, "unknown key", fix)
