# SPDX-License-Identifier: Apache-2.0
"""The canonical keys: their names, what a value may be, which of two values requests less."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar, Final

from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.request import (
    IDLE_AFTER,
    PROFILE,
    REMOTE,
    TIME_LIMIT,
    Diagnostic,
    Layer,
    Percent,
    QuotaRequest,
    RequestedValue,
    RequestRecord,
    Value,
    ValueSource,
)
from gpushare.quota.size import dockers_size, parse_size

# --- how a value is read, and what is left of one that a lower source narrows ---
#
# A reader raises BadValue. A narrowing function takes the value of the higher source and that of
# the lower one; what it returns never requests more than the higher one.

#: The units of a duration, in seconds.
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class WholeNumber:
    """Reads a whole number from `low` to `high`; `what` it is, for people."""

    low: int
    high: int
    what: str

    @property
    def error(self) -> BadValue:
        """The error for any other text."""
        return BadValue(
            f"is not {self.what}", f"write a whole number from {self.low} to {self.high}"
        )

    def __call__(self, text: str) -> Value:
        """Return the number in `text`; BadValue if there is none."""
        stripped = text.strip()
        if not re.fullmatch(r"[0-9]{1,9}", stripped, re.ASCII):
            raise self.error
        value = int(stripped)
        if not self.low <= value <= self.high:
            raise self.error
        return value


class PatternReader:
    """Reads a text that matches `pattern`."""

    pattern: ClassVar[str]
    wrong: ClassVar[tuple[str, str]]  # the rule that any other text violates, and the fix

    @property
    def error(self) -> BadValue:
        """The error for any other text."""
        return BadValue(*self.wrong)

    def matched(self, text: str) -> str:
        """Return `text` without spaces around it; BadValue if it does not match."""
        stripped = text.strip()
        if not re.fullmatch(self.pattern, stripped, re.ASCII):
            raise self.error
        return stripped


class PercentOfMemory(PatternReader):
    """Reads a percentage of a card's memory, exactly: `25`, `12.5`, or the ratio `100/3`."""

    pattern = r"[0-9]{1,16}([.][0-9]{1,16}|/[0-9]{1,16})?"
    wrong = (
        "is not a percentage of a card's memory",
        "write a number up to 100, e.g. 25, 12.5 or 100/3",
    )

    def __call__(self, text: str) -> Percent:
        """Return the percentage, above 0 and at most 100; BadValue if there is none."""
        stripped = self.matched(text)
        if stripped.isdigit():
            percent: Percent = int(stripped)
        else:
            from fractions import Fraction  # noqa: PLC0415 - whole numbers need none

            try:
                exact = Fraction(stripped)
            except ZeroDivisionError:
                raise self.error from None
            percent = int(exact) if exact.denominator == 1 else exact
        if not 0 < percent <= 100:
            raise self.error
        return percent


def format_percent(percent: Percent) -> str:
    """Return a percentage for people: `25 %`, `26.67 %`."""
    return f"{float(percent):.4g} %"


@dataclass(frozen=True)
class Choice:
    """Reads one of some words, or a short name of one."""

    words: tuple[str, ...]
    short: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> BadValue:
        """The error for any other text."""
        return BadValue("is not a valid value", "write " + either(self.words))

    def __call__(self, text: str) -> Value:
        """Return the word in `text`; BadValue if it is none of them."""
        value = self.short.get(text.strip(), text.strip())
        if value not in self.words:
            raise self.error
        return value


class Name(PatternReader):
    """Reads a name."""

    pattern = "[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
    wrong = "is not a name", "write lower-case letters, digits, - and ., e.g. small"

    def __call__(self, text: str) -> Value:
        """Return the name; BadValue if it is none."""
        return self.matched(text)


parse_name: Final = Name()


class Duration(PatternReader):
    """Reads a time with its unit, as seconds."""

    pattern = "[1-9][0-9]{0,5}[smhd]"
    wrong = "is not a duration", "write a whole number with the unit s, m, h or d, e.g. 30m"

    def __call__(self, text: str) -> int:
        """Return the seconds of `30m`; BadValue if it is no duration."""
        stripped = self.matched(text)
        return int(stripped[:-1]) * _UNITS[stripped[-1]]


parse_duration: Final = Duration()


class Oversubscription(PatternReader):
    """Reads where memory beyond the quota may be: `none`, `host`, or a bound as in `host:8GiB`."""

    pattern = r"none|host(:[1-9][0-9]{0,15}([KMGT]iB?|[kmgt]))?"
    wrong = "is not a valid value", "write none, host, or a size as in host:8GiB"

    def __call__(self, text: str) -> str:
        """Return the text; BadValue if it is none of them."""
        stripped = self.matched(text)
        oversubscribed_bytes(stripped)
        return stripped


parse_oversubscription: Final = Oversubscription()


def oversubscribed_bytes(text: str) -> int | None:
    """Return the bytes of `host:8GiB`, 0 of `none`, and None of `host`: what the node gives."""
    where, _, size = text.partition(":")
    if where != "host":
        return 0
    return parse_size(size) if size else None


def less_oversubscribed(higher: Value, lower: Value) -> Value:
    """Return the value with less host memory."""
    sizes = [oversubscribed_bytes(str(text)) for text in (higher, lower)]
    if sizes[1] is None:
        return higher
    return lower if sizes[0] is None or sizes[1] < sizes[0] else higher


def either(choices: tuple[str, ...]) -> str:
    """Return `a, b or c`."""
    return choices[0] if len(choices) == 1 else ", ".join(choices[:-1]) + f" or {choices[-1]}"


def exact_duration(seconds: int) -> str:
    """Return the shortest text of `seconds` for `parse_duration`."""
    unit = next(unit for unit in reversed(_UNITS) if seconds % _UNITS[unit] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"


def smaller(higher: Value, lower: Value) -> Value:
    """Return the smaller number."""
    assert not isinstance(higher, (str, tuple))
    assert not isinstance(lower, (str, tuple))
    return min(higher, lower)


def larger(higher: Value, lower: Value) -> Value:
    """Return the larger number."""
    assert isinstance(higher, int)
    assert isinstance(lower, int)
    return max(higher, lower)


def unchanged(higher: Value, _lower: Value) -> Value:
    """Return the higher source's value."""
    return higher


def prefer(modest: str) -> Callable[[Value, Value], Value]:
    """Return the function that takes `modest` from either source."""
    return lambda higher, lower: lower if lower == modest else higher


def subset(higher: Value, lower: Value) -> Value:
    """Return the lower source's list if it is part of the higher one's."""
    assert isinstance(higher, tuple)
    assert isinstance(lower, tuple)
    return lower if set(lower) <= set(higher) else higher


def union(higher: Value, lower: Value) -> Value:
    """Return both lists."""
    assert isinstance(higher, tuple)
    assert isinstance(lower, tuple)
    return higher + tuple(item for item in lower if item not in higher)


# --- lists in a request that say which cards: by index or UUID, and by compute capability ---

MAX_CARDS: Final = 16  # GPUSHARE_MAX_CARDS of gpushare_abi.h
#: An item of each list that has a form, and what is wrong with any other text.
CARD: Final = "[0-9]{1,3}(:[0-9]{1,3})?|(GPU|MIG)-[0-9A-Za-z-]{1,64}"
#: One card as node and engines read it: also its PCI address (nvidia-smi's form), and in any case.
CARD_NAME: Final = re.compile(
    rf"{CARD}|[0-9A-F]{{1,8}}:[0-9A-F]{{2}}:[0-9A-F]{{2}}[.]0", re.ASCII | re.IGNORECASE
)
BAD_CARD: Final = BadValue(
    "is not a list of cards", "write indices or UUIDs, e.g. 0,2 or GPU-4f1c..."
)
CAPABILITY: Final = "(>=|<=|=|>|<) ?[0-9]{1,2}[.][0-9]{1,2}|[0-9]{1,2}[.][0-9]{1,2}[+]"
BAD_CAPABILITY: Final = BadValue(
    "does not compare compute capabilities", "write e.g. >=8.0, or >=8.0,<10.0"
)

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


def parse_list(text: str) -> tuple[str, ...]:
    """Return the items of a list that is separated by commas; BadValue."""
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise BadValue("has an empty item in its list", "separate the names with single commas")
    if len(set(items)) != len(items):
        raise BadValue("lists a name twice", "write each name once")
    return items


def parse_devices(text: str) -> tuple[str, ...]:
    """Return the cards that are named, an index without leading zeros; BadValue."""
    items = parse_list(text)
    if len(items) > MAX_CARDS:
        raise BadValue("names too many cards", f"write at most {MAX_CARDS}")
    if not all(map(CARD_NAME.fullmatch, items)):
        raise BAD_CARD
    return tuple(str(int(item)) if item.isdigit() else item for item in items)


def is_card(name: str, index: int, uuid: str, bus_id: str) -> bool:
    """Whether `name` is the index, the UUID or the PCI address of a card, in any case."""
    wanted = name.casefold()
    # The domain may be shorter than NVML's eight digits.
    return wanted in {str(index), uuid.casefold()} or wanted.zfill(16) == bus_id.casefold()


def is_beginning(name: str, uuid: str) -> bool:
    """Whether `name` is a beginning of a card's UUID that tells it from others, in any case."""
    return len(name) > len("GPU-") and uuid.casefold().startswith(name.casefold())


def parse_capabilities(text: str) -> tuple[str, ...]:
    """Return the comparisons that all have to hold, each as `>=8.0`; `8.0+` is one; BadValue."""
    items = parse_list(text)
    if not all(re.fullmatch(CAPABILITY, item, re.ASCII) for item in items):
        raise BAD_CAPABILITY
    return tuple(
        dict.fromkeys(
            f">={item[:-1]}" if item.endswith("+") else item.replace(" ", "") for item in items
        )
    )


def accepts_capability(comparisons: Sequence[str], capability: tuple[int, int] | None) -> bool:
    """Whether a card of this compute capability may be used; None: it is not known."""
    if capability is None:
        return not comparisons
    for text in comparisons:
        sign = text.rstrip("0123456789.")
        major, minor = text[len(sign) :].split(".")
        if not _COMPARISONS[sign](capability, (int(major), int(minor))):
            return False
    return True


# --- the canonical keys: their names, what a value may be, which of two values requests less ---

ANNOTATION_PREFIX: Final = "gpushare.io/"
ENV_PREFIX: Final = "GPUSHARE_"
POLICIES: Final = ("fixed-share", "burst-share", "best-effort", "native-burst-share")
#: Those of qGPU's label, which people who come from there write.
SHORT_POLICIES: Final = {"be": "best-effort", "fs": "fixed-share", "bs": "burst-share"}


def full_policy(name: str) -> str:
    """Return the policy of a name, which may be a short one."""
    return SHORT_POLICIES.get(name, name)


# Environment variables of ours that request nothing.
_NOT_QUOTAS: Final = frozenset(
    {
        "GPUSHARE_DISABLE",
        "GPUSHARE_LOG",
        "GPUSHARE_SIM_DEVICE",
        "GPUSHARE_SIM_TRACE",
        "GPUSHARE_SOCKET",
        "GPUSHARE_TENANT_DIR",
        "GPUSHARE_TICKET",
    }
)
# A Service called gpushare gives every pod of its namespace variables of this name, in the form
# that Docker's links once had: GPUSHARE_SERVICE_HOST, GPUSHARE_PORT_80_TCP_ADDR.
_SERVICE: Final = re.compile(
    r"GPUSHARE_(.*SERVICE_HOST|.*SERVICE_PORT.*|.*PORT|.*PORT_[0-9].*)", re.DOTALL
)


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

    def certain(self, text: str) -> str:
        """Return `text` of a variable or an option: a size as `docker run -m` takes it."""
        return dockers_size(text) if self.parse in (parse_size, parse_oversubscription) else text


def choice_key(name: str, choices: tuple[str, ...], meaning: str) -> Key:
    """Return a key of one of `choices` that no request has."""
    return Key(name, "", Choice(choices), unchanged, meaning)


def is_quota(variable: str) -> bool:
    """Whether an environment variable of this name is read as a quota, its key known or not."""
    return (
        variable.startswith(ENV_PREFIX)
        and variable not in _NOT_QUOTAS
        and not _SERVICE.fullmatch(variable)
    )


_PERCENT: Final = PercentOfMemory()
_CORES: Final = WholeNumber(1, 100, "a share of a card in percent")
_COUNT: Final = WholeNumber(1, MAX_CARDS, "a number of cards")

KEYS: Final[Mapping[str, Key]] = {
    key.name: key
    for key in (
        Key("memory", "memory_bytes", parse_size, smaller, "Memory of each card."),
        Key(
            "memory-percent",
            "memory_percent",
            _PERCENT,
            smaller,
            "Memory of each card, in percent of the card's memory.",
        ),
        Key(
            PROFILE,
            "profile",
            parse_name,
            unchanged,
            "A profile of the node (profiles in gpushare.yaml): its memory, compute and policy. No "
            "other key of memory or compute but priority and class may be set beside it.",
        ),
        Key(
            "memory-limit",
            "memory_limit_bytes",
            parse_size,
            smaller,
            "Burst limit: how much memory it may use on each card while the card has "
            "unallocated memory.",
        ),
        Key(
            "cores",
            "cores",
            _CORES,
            smaller,
            "Percent of a card's compute: a guarantee, a cap or a weight, depending on the policy. "
            "100 is a whole card.",
        ),
        Key(
            "count",
            "count",
            _COUNT,
            smaller,
            "Number of cards; whole cards if no memory is requested.",
        ),
        Key(
            "devices",
            "devices",
            parse_devices,
            subset,
            "Cards to use; whole cards if no memory is requested.",
        ),
        Key("allow", "allow", parse_list, subset, "Only cards of these models or UUIDs."),
        Key("deny", "deny", parse_list, union, "No cards of these models or UUIDs."),
        Key(
            "compute-capability",
            "compute_capability",
            parse_capabilities,
            union,
            "Only cards with these compute capabilities; several comparisons must all be true. "
            "`8.0+` means `>=8.0`.",
        ),
        Key(
            "policy",
            "policy",
            Choice(POLICIES, SHORT_POLICIES),
            unchanged,
            "fixed-share: its cores and no more. burst-share: its cores, and more while other "
            "containers leave compute idle. best-effort: an equal part of the compute that is "
            "not guaranteed to others. native-burst-share: a part of that compute by weight. "
            "qGPU's short names fs, bs and be are accepted.",
        ),
        Key(
            "weight",
            "weight",
            WholeNumber(1, 1000, "a weight"),
            smaller,
            "Relative weight under native-burst-share: a multiple of the part of a best-effort "
            "container. Default: its cores.",
        ),
        Key(
            "priority",
            "priority",
            WholeNumber(0, 9, "a priority"),
            larger,
            "Strict priority among offline containers: 0 is served first, and a container waits "
            "while one with a higher priority wants the card. Default: 5.",
        ),
        Key(
            "class",
            "class_",
            Choice(("online", "offline")),
            prefer("offline"),
            "online: a latency-sensitive container that never waits for its turn; the others wait "
            "while it works (under fixed-share only as long as its cores last). Default: offline.",
        ),
        Key(
            "placement",
            "placement",
            Choice(("binpack", "spread", "topology")),
            unchanged,
            "Use the fullest card that fits (binpack), the emptiest (spread), or several cards "
            "that are close to each other (topology). Default: binpack for a share of one card, "
            "otherwise topology.",
        ),
        Key(
            "oversubscribe",
            "oversubscribe",
            parse_oversubscription,
            less_oversubscribed,
            "Managed memory that does not count against the memory, because the driver may move it "
            "to host memory: host (as much as the node gives) or a size for each card, host:8GiB. "
            "Refused unless the node allows it (oversubscribe in gpushare.yaml).",
        ),
        Key(
            "backend",
            "backend",
            Choice(("driver", "mig", "interposer", "mps", "exclusive")),
            unchanged,
            "Backend that enforces the quota: driver (refused if the driver has no limits of its "
            "own), interposer, exclusive, a whole card, mig, a MIG instance, whole or shared by "
            "the interposer, or mps, a card in MPS mode (cards.NAME.backend of gpushare.yaml). "
            "Default: the best available.",
        ),
        Key(
            IDLE_AFTER,
            "idle_after_seconds",
            parse_duration,
            smaller,
            "Time without any use of its cards, after which the container is idle if it holds GPU "
            "memory. Only gpushare set can make it longer than idle.after of the node, whose "
            "idle.action applies.",
        ),
        Key(
            TIME_LIMIT,
            "time_limit_seconds",
            parse_duration,
            smaller,
            "Time after which the container is stopped, counted from its start: SIGTERM, and "
            "SIGKILL 30 seconds later. gpushared warns before.",
        ),
        Key(
            REMOTE,
            "remote",
            parse_name,
            unchanged,
            "A server of another machine (remote.servers in gpushare.yaml). The container uses its "
            "GPU instead of a card of this node. No other key may be set beside it: the quota is "
            "set where the server runs.",
        ),
    )
}
#: Keys that only an operator may set, on a running container (`gpushare set`).
OPERATORS: Final[Mapping[str, Key]] = {
    "over-quota-action": Key(
        "over-quota-action",
        "over_quota_action",
        Choice(("observe", "warn", "freeze", "kill")),
        unchanged,
        "Action when the container exceeds its memory quota by bypassing the interposer library: "
        "observe, warn, freeze or kill.",
    )
}
BY_ENV: Final[Mapping[str, Key]] = {key.env: key for key in KEYS.values()}


def read(name: str, source: ValueSource, text: str, known: Mapping[str, Key]) -> RequestedValue:
    """Return what `text` requests under `name`; QuotaError for an unknown key or a bad value."""
    key = known.get(name)
    if key is None:
        raise _unknown(name, source, text, known)
    certain = key.certain(text) if source.kind in {"env", "option", "operator"} else text
    try:
        value = key.parse(certain)
    except BadValue as bad:
        raise QuotaError(str(source), text, bad.rule, bad.fix) from bad
    if isinstance(key.parse, Choice) and text.strip() in key.parse.short:
        certain = str(value)
    return RequestedValue(certain, value, source, written="" if certain == text else text)


_MOST_SUGGESTIONS: Final = 16  # each compares with all keys, and an image writes any number
_REMOVE: Final = "remove it"


class Diagnostics(list[Diagnostic]):
    """The problems of one request, in the order in which they were found."""

    def read(
        self, name: str, source: ValueSource, text: str, known: Mapping[str, Key]
    ) -> RequestedValue | None:
        """Return what `text` requests under `name`; None where it is refused, which is added."""
        if name not in known and len(self) >= _MOST_SUGGESTIONS:
            self.append(Diagnostic(QuotaError(str(source), text, "unknown key", _REMOVE), source))
            return None
        try:
            return read(name, source, text, known)
        except QuotaError as error:
            self.append(Diagnostic(error, source))
            return None

    def raise_first(self) -> None:
        """Raise the first problem that refuses this container."""
        for diagnostic in self:
            if diagnostic.applies:
                raise diagnostic.error


def from_record(record: RequestRecord) -> Layer:
    """Return the values that `to_record` recorded; each source has the name of its key."""
    return {
        key: read(key, ValueSource(row["source"], key), row["value"], KEYS)
        for key, row in record.items()
    }


def request_from(values: Mapping[str, RequestedValue]) -> QuotaRequest:
    """Return the request that `values` make, by canonical key."""
    fields = {KEYS[key].field: value.value for key, value in values.items()}
    return QuotaRequest(**fields, requested=values)  # type: ignore[arg-type]


def parse_change(options: Mapping[str, str]) -> QuotaRequest:
    """Return what `gpushare set` changes of a share, by canonical key.

    QuotaError: an unknown key, a text that is no value, a value that a share cannot have.
    """
    change = request_from(
        {
            name: read(name, ValueSource("option", name), text, KEYS)
            for name, text in options.items()
        }
    )
    if change.cores == 100:
        rule = "is a whole card, but this container has a share"
        fix = "set 99 or less; for a whole card, restart the container with GPUSHARE_CORES=100"
        raise change.refuse("cores", rule, fix)
    return change


def _unknown(name: str, source: ValueSource, text: str, known: Mapping[str, Key]) -> QuotaError:
    shown = source.name[: len(source.name) - len(name)]
    # All variables begin with GPUSHARE_, which makes none of them likely.
    folded = {key.removeprefix(ENV_PREFIX).casefold(): key for key in known}
    close = get_close_matches(name.removeprefix(ENV_PREFIX).casefold(), folded, n=1, cutoff=0.6)
    keys = ", ".join(known)
    fix = f"did you mean {shown}{folded[close[0]]}?" if close else f"the keys are {keys}"
    return QuotaError(str(source), text, "unknown key", fix)
