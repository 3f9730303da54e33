# SPDX-License-Identifier: Apache-2.0
"""The canonical keys: their names, what a value may be, which of two values asks for less."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.quota import Asked, Source, Value
from gpushare.quota.size import parse_size

ANNOTATION_PREFIX: Final = "gpushare.io/"
ENV_PREFIX: Final = "GPUSHARE_"
MAX_CARDS: Final = 16  # GPUSHARE_MAX_CARDS of gpushare_abi.h
POLICIES: Final = ("fixed-share", "burst-share", "best-effort", "native-burst-share")

# Environment variables of ours that ask for nothing.
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
    """One canonical key and the field of Quota that it fills.

    `narrow(higher, lower)` is what is left of a higher source's value when a lower source says
    another; it never asks for more than `higher`. `meaning` is for the reference: what it is, and
    how far this version goes with it.
    """

    name: str
    field: str
    parse: Callable[[str], Value]
    narrow: Callable[[Value, Value], Value]
    meaning: str

    @property
    def annotation(self) -> str:
        """The annotation that asks for it."""
        return ANNOTATION_PREFIX + self.name

    @property
    def env(self) -> str:
        """The environment variable that asks for it."""
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
            raise BadValue("is not one of its values", "write " + _either(choices))
        return value

    return parse


def _either(choices: tuple[str, ...]) -> str:
    return choices[0] if len(choices) == 1 else ", ".join(choices[:-1]) + f" or {choices[-1]}"


def _list(text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise BadValue(
            "has an empty place in its list", "write the names with single commas between"
        )
    if len(set(items)) != len(items):
        raise BadValue("names something twice", "write each name once")
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
        Key("memory-percent", "memory_percent", _PERCENT, _less, "The same, of what a card has."),
        Key(
            "memory-limit",
            "memory_limit_bytes",
            parse_size,
            _less,
            "Up to this it may use what is promised to nobody, as long as that lasts.",
        ),
        Key(
            "cores",
            "cores",
            _CORES,
            _less,
            "Percent of a card's compute: a guarantee, a cap or a weight, as the policy says. "
            "100 is a whole card.",
        ),
        Key("count", "count", _COUNT, _less, "How many cards; without memory, whole ones."),
        Key("devices", "devices", _devices, _subset, "Which cards; without memory, whole ones."),
        Key("allow", "allow", _models, _subset, "Only cards of these models or UUIDs."),
        Key("deny", "deny", _models, _union, "No card of these models or UUIDs."),
        Key(
            "policy",
            "policy",
            _choice(*POLICIES),
            _same,
            "fixed-share: its cores and no more. burst-share: its cores, and more while others "
            "leave it. best-effort: an equal part of what nobody is guaranteed. "
            "native-burst-share: a part of that by weight.",
        ),
        Key(
            "weight",
            "weight",
            _number(1, 1000, "a weight"),
            _less,
            "Under native-burst-share: how many times the part of a best-effort one it gets. "
            "Without it, its cores.",
        ),
        Key(
            "priority",
            "priority",
            _number(0, 9, "a priority"),
            _later,
            "Of those offline, 0 is served first, and none while one before it wants the card. "
            "Without it 5.",
        ),
        Key(
            "class",
            "class_",
            _choice("online", "offline"),
            _prefer("offline"),
            "online: somebody waits for it, so it never waits itself, and the others do while it "
            "works (under fixed-share no longer than its cores last). Without it offline.",
        ),
        Key(
            "placement",
            "placement",
            _choice("binpack", "spread", "topology"),
            _same,
            "The fullest card that fits (binpack), the emptiest (spread), or of several those "
            "nearest to each other (topology). Without it binpack for a share of one card, else "
            "topology.",
        ),
        Key(
            "numa",
            "numa",
            _choice("none", "bind"),
            _prefer("bind"),
            "bind: only the CPUs and the memory of its cards' NUMA nodes, of those that it may "
            "have anyway. Without it none.",
        ),
        Key(
            "oversubscribe",
            "oversubscribe",
            _choice("none", "host"),
            _prefer("none"),
            "Memory beyond the card's, in the host's. host is refused in this version.",
        ),
        Key(
            "backend",
            "backend",
            _choice("driver", "mig", "interposer", "mps", "exclusive"),
            _same,
            "What holds the quota: driver (refused where the driver has no limits of its own) or "
            "interposer; exclusive is a whole card. Without it the best there is; mps and mig are "
            "refused in this version.",
        ),
    )
}
#: What an operator alone says, of a container that runs (`gpushare set`): no request has them.
OPERATORS: Final[Mapping[str, Key]] = {
    "on-over": Key(
        "on-over",
        "on_over",
        _choice("observe", "warn", "freeze", "kill"),
        _same,
        "How far the audit goes with it when it has more memory than it may.",
    )
}
BY_ENV: Final[Mapping[str, Key]] = {key.env: key for key in KEYS.values()}


def read(name: str, source: Source, text: str, known: Mapping[str, Key]) -> Asked:
    """Return what `text` asks for under `name`; QuotaError for no such key, or no such value."""
    key = known.get(name)
    if key is None:
        raise _unknown(name, source, text, known)
    try:
        return Asked(text, key.parse(text), source)
    except BadValue as bad:
        raise QuotaError(str(source), text, bad.rule, bad.fix) from bad


def _unknown(name: str, source: Source, text: str, known: Mapping[str, Key]) -> QuotaError:
    shown = source.name[: len(source.name) - len(name)]
    folded = {key.casefold(): key for key in known}
    close = get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    fix = f"did you mean {shown}{folded[close[0]]}?" if close else "the keys are " + ", ".join(KEYS)
    return QuotaError(str(source), text, "is for a key that gpushare does not know", fix)
