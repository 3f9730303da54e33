# SPDX-License-Identifier: Apache-2.0
"""The sections of gpushare.yaml, and what is wrong with them.

A section's key stands instead of the same key of the whole node, be it smaller or larger: so a
namespace can be an exception. `schema` reads the text, with the line of every key, and checks its
form. gpushare/config.py has the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from gpushare.quota.effective_request import Defaults, resolve_request
from gpushare.quota.errors import QuotaError, quoted
from gpushare.quota.keys import request_from
from gpushare.quota.profiles import ShareProfile, profile
from gpushare.quota.request import RequestedValue, ValueSource
from gpushare.quota.request_policy import (
    Dialects,
    IdlePolicy,
    MaxPerCard,
    MaxPerNode,
    MaxPerRequest,
    RequestPolicy,
)
from gpushare.quota.size import parse_size
from gpushare.quota.values import parse_duration
from gpushare.settings import schema
from gpushare.settings.schema import (
    ConfigDocument,
    ConfigError,
    ConfigProblem,
    load_schema,
    text_of,
)
from gpushare.text_position import KeyPath, at, key_of

__all__ = [
    "ANY",
    "USERS",
    "USERS_MAX_PER_CARD",
    "USERS_MAX_PER_REQUEST",
    "CardRule",
    "CardSection",
    "ConfigError",
    "ConfigProblem",
    "card_sections",
    "checked",
    "load_schema",
    "namespaces",
    "of_namespace",
    "terms",
    "text_of",
]

_BUILT_IN: Final = "gpushare default"
#: Any user of the host may reserve part of a card: by default half of it, not all.
USERS_MAX_PER_CARD: Final = MaxPerCard(
    memory_percent=50,
    cores=50,
    tenants=8,
    where={
        key: f"users.max_per_card.{key}, {_BUILT_IN}"
        for key in ("memory_percent", "cores", "tenants")
    },
)
#: Nor may a user take precedence over others' containers.
USERS_MAX_PER_REQUEST: Final = MaxPerRequest(
    priority=5,
    classes=("offline",),
    where={key: f"users.max_per_request.{key}, {_BUILT_IN}" for key in ("priority", "classes")},
)
NODE: Final[KeyPath] = ()
USERS: Final[KeyPath] = ("users",)


def of_namespace(name: str) -> KeyPath:
    """Return the section of a namespace, by its name or pattern in the file."""
    return ("namespaces", name)


def _as_it_is(value: Any) -> Any:
    return value


#: Of each key of the file the field, and what makes its value.
_DEFAULTS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "memory": ("memory_bytes", parse_size),
    "cores": ("cores", _as_it_is),
    "policy": ("policy", _as_it_is),
    "mode": ("shared_by_default", lambda mode: mode == "shared"),
    "placement": ("placement", _as_it_is),
    "numa": ("numa", _as_it_is),
}
_MAX_PER_REQUEST: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "memory": ("memory_bytes", parse_size),
    "memory_percent": ("memory_percent", _as_it_is),
    "memory_limit": ("memory_limit_bytes", parse_size),
    "cores": ("cores", _as_it_is),
    "count": ("count", _as_it_is),
    "weight": ("weight", _as_it_is),
    "priority": ("priority", _as_it_is),
    "policies": ("policies", tuple),
    "classes": ("classes", tuple),
    "backends": ("backends", tuple),
    "allow_exclusive": ("allow_exclusive", _as_it_is),
}
_MAX_PER_CARD: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "memory": ("memory_bytes", parse_size),
    "memory_percent": ("memory_percent", _as_it_is),
    "cores": ("cores", _as_it_is),
    "tenants": ("tenants", _as_it_is),
}
_MAX_PER_NODE: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "memory": ("memory_bytes", parse_size),
    "cores": ("cores", _as_it_is),
    "cards": ("cards", _as_it_is),
    "tenants": ("tenants", _as_it_is),
}
_AUDIT: Final[Mapping[str, str]] = {"over_quota": "over", "gate_bypass": "compute"}
_MODELS: Final = "models"
_ALL: Final = "all"
PROFILES: Final = "profiles"


@dataclass(frozen=True)
class SectionValues:
    """The keys of one part of a section with their values and where each is.

    A key of a model is `models.A100.memory`.
    """

    values: Mapping[str, Any]
    places: Mapping[str, KeyPath]

    def fields(self, known: Mapping[str, tuple[str, Callable[[Any], Any]]]) -> dict[str, Any]:
        """Return the values by the field that each fills."""
        return {known[key][0]: known[key][1](value) for key, value in self.values.items()}


def section_values(document: ConfigDocument, section: KeyPath, part: str) -> SectionValues:
    """Return what holds of `part` (defaults, ceilings, dialects ...) for a section: the nearer."""
    values: dict[str, Any] = {}
    places: dict[str, KeyPath] = {}
    for above in dict.fromkeys((NODE, section)):
        for way, value in _leaves(document.section((*above, part))):
            key = ".".join(way)
            values[key], places[key] = value, (*above, part, *way)
    own = document.section((*section, part))
    if part == "max_per_request" and "memory" in own and "memory_limit" not in own:
        # A section with its own memory maximum must not inherit a burst maximum from above.
        values.pop("memory_limit", None)
    return SectionValues(values, {key: places[key] for key in values})


def word(document: ConfigDocument, section: KeyPath, key: str) -> tuple[Any, KeyPath]:
    """Return what holds of a `key` that is no section, and where it stands; (None, ()) nowhere."""
    for place in ((*section, key), (key,)):
        if (value := document.at(place)) is not None:
            return value, place
    return None, ()


def _leaves(section: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the way to each value that is there, and the value."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from (((key, *way), below) for way, below in _leaves(value))
        elif value is not None:
            yield (key,), value


def terms(document: ConfigDocument, section: KeyPath = NODE) -> RequestPolicy:
    """Return the terms of `section` of a document that has been checked."""
    ceilings = section_values(document, section, "max_per_request")
    together = section_values(document, section, "max_per_card")
    most = USERS_MAX_PER_REQUEST if section == USERS else MaxPerRequest()
    held = replace(
        most,
        **ceilings.fields(_MAX_PER_REQUEST),
        where={**most.where, **_where(document, ceilings)},
    )
    of_section = section_values(document, section, "defaults")
    own = {key for key, place in of_section.places.items() if place[0] != "defaults"}
    defaults = Defaults(**of_section.fields(_DEFAULTS), own=frozenset(own))
    all_have = USERS_MAX_PER_CARD if section == USERS else MaxPerCard()
    audit = section_values(document, section, "audit").values
    compat, _ = word(document, section, "compatibility")
    return RequestPolicy(
        **{field: audit[key] for key, field in _AUDIT.items() if key in audit},
        **({} if compat is None else {"compat": compat}),
        defaults=held.limit_defaults(defaults),
        max_per_request=held,
        max_per_card=replace(
            all_have,
            **together.fields(_MAX_PER_CARD),
            where={**all_have.where, **_where(document, together)},
        ),
        max_per_node=_total(document, section),
        trust=section_values(document, section, "trust").values.get("env"),
        idle=_idle(document, section),
        dialects=_dialects(document, section),
        profiles=profiles(document),
    )


def _idle(document: ConfigDocument, section: KeyPath) -> IdlePolicy:
    values = dict(section_values(document, section, "idle").values)
    after = values.pop("after", "never")
    return IdlePolicy(None if after == "never" else parse_duration(after), **values)


def _dialects(document: ConfigDocument, section: KeyPath) -> Dialects:
    found = section_values(document, section, "dialects")
    values = dict(found.values)
    names = values.pop("accept", _ALL)
    accept = None if names == _ALL else frozenset(names)
    if "unaccepted" in values:
        values["others"] = values.pop("unaccepted")
    return Dialects(**values, accept=accept, where=_where(document, found))


def _total(document: ConfigDocument, section: KeyPath) -> MaxPerNode:
    found = section_values(document, section, "max_per_node")
    where = _where(document, found)
    models: dict[str, MaxPerNode] = {}
    own: dict[str, Any] = {}
    for key, value in found.values.items():
        way, _, last = key.rpartition(".")
        field, made = _MAX_PER_NODE[last]
        if not way:
            own[field] = made(value)
            continue
        model = way.removeprefix(f"{_MODELS}.")
        before = models.get(model, MaxPerNode())
        where_of_model = {**before.where, last: where[key]}
        models[model] = replace(before, **{field: made(value)}, where=where_of_model)
    return MaxPerNode(**own, models=models, where=where)


def built_in(section: KeyPath, part: str) -> dict[str, Any]:
    """Return what holds of `part` where no line of the file says it, by key."""
    if section == USERS and part == "max_per_request":
        return {
            "priority": USERS_MAX_PER_REQUEST.priority,
            "classes": [*(USERS_MAX_PER_REQUEST.classes or ())],
        }
    if (section, part) != (USERS, "max_per_card"):
        return {}
    found = {key: getattr(USERS_MAX_PER_CARD, field) for key, (field, _) in _MAX_PER_CARD.items()}
    return {key: value for key, value in found.items() if value is not None}


def check(document: ConfigDocument, section: KeyPath) -> None:
    """Note what contradicts itself in `section`, or in it and in what it adds to."""
    ceilings, defaults = (
        section_values(document, section, part) for part in ("max_per_request", "defaults")
    )
    limit, memory = (ceilings.values.get(key) for key in ("memory_limit", "memory"))
    if limit is not None and memory is not None and parse_size(limit) < parse_size(memory):
        text = f'"{limit}" is below the maximum of memory, "{memory}"; write {memory} or more'
        _problem(document, section, ceilings.places["memory_limit"], text)
    if defaults.values.get("mode") == "shared" and "memory" not in defaults.values:
        text = "shared mode requires a default memory; add memory: 4GiB next to it"
        _problem(document, section, defaults.places["mode"], text)
    policy, policies = defaults.values.get("policy"), ceilings.values.get("policies")
    if policy is not None and policies is not None and policy not in policies:
        text = f'"{policy}" is not among max_per_request.policies; write {" or ".join(policies)}'
        _problem(document, section, defaults.places["policy"], text)
    _check_dialects(document, section)


def _check_dialects(document: ConfigDocument, section: KeyPath) -> None:
    found = section_values(document, section, "dialects")
    names = found.values.get("accept", _ALL)
    if names == _ALL or not names:
        return
    # Imported here: the clients read this package for its defaults and need no tables.
    from gpushare.quota.dialects import DIALECTS  # noqa: PLC0415

    for number, name in enumerate(names):
        if name not in DIALECTS:
            close = get_close_matches(name, DIALECTS, n=1, cutoff=0.6)
            fix = (
                f"did you mean {close[0]}?" if close else "the dialects are " + ", ".join(DIALECTS)
            )
            place = (*found.places["accept"], number)
            _problem(document, section, place, f"{quoted(name)} is not a dialect; {fix}")


def _problem(document: ConfigDocument, section: KeyPath, place: KeyPath, text: str) -> None:
    """Note it once: what is wrong for the whole node is not repeated for each section."""
    if section == NODE or place[: len(section)] == section:
        document.problem(place, text)


def _where(document: ConfigDocument, found: SectionValues) -> dict[str, str]:
    return {
        key: f"{'.'.join(map(str, place))}, {at(document.file, document.line(place))}"
        for key, place in found.places.items()
    }


def profiles(document: ConfigDocument) -> dict[str, ShareProfile]:
    """Return the profiles of a document whose form has been checked, by name, in its order."""
    return {
        name: profile(name, document.section((PROFILES, name)))
        for name in document.section((PROFILES,))
    }


def _check_profiles(document: ConfigDocument) -> None:
    for name, one in profiles(document).items():
        given = document.section((PROFILES, name))
        has = [key for key in ("memory", "equal") if given.get(key) is not None]
        if len(has) != 1:
            both = "sets memory twice; keep one of memory and equal"
            text = both if has else "sets no memory; add memory: 4GiB or equal: 4"
            document.problem((PROFILES, name, *has[1:]), text)
            continue
        source = ValueSource("default", key_of((PROFILES, name)))
        try:
            resolve_request(request_from(one.layer(RequestedValue(name, name, source))))
        except QuotaError as error:
            document.problem((PROFILES, name), f"{error.rule}; {error.fix}")


def namespaces(document: ConfigDocument) -> list[str]:
    """Return the names and patterns of the document's namespaces, in its order."""
    return list(document.section(("namespaces",)))


SECTION: Final = "cards"
ANY: Final = "any"
INTERPOSER: Final = "interposer"
MPS: Final = "mps"


@dataclass(frozen=True)
class CardRule:
    """Which requests a card accepts, and the maximum number of shares.

    `mode` is "shared" (no whole card), "exclusive" (no share) or "any". `backend` is "interposer",
    or "mps" if the card's shares are clients of an MPS server; `mps_partitions`: each with
    multiprocessors of its own. `where` has for each key of the file where the file says it.
    """

    mode: str = ANY
    max_tenants: int = 16
    backend: str = INTERPOSER
    mps_partitions: bool = False
    where: Mapping[str, str] = field(default_factory=dict, compare=False)
    cordoned_by: str | None = None  # the annotation of the node that cordons it


@dataclass(frozen=True)
class CardSection:
    """One section of `cards`: its name, its values and where each is."""

    name: str
    values: Mapping[str, Any]
    where: Mapping[str, str]

    def nearness(self, index: int, uuid: str, model: str) -> int:
        """Return 3 for the UUID, 2 for the index, 1 for the model, 0 for another card."""
        if self.name == uuid:
            return 3
        if self.name.isdigit():
            return 2 if self.name == str(index) else 0
        return 1 if self.name.casefold() in model.casefold() else 0


def card_sections(document: ConfigDocument) -> tuple[CardSection, ...]:
    """Return the sections of a document that has been checked, in its order."""
    return tuple(_section(document, name) for name in document.section((SECTION,)))


def _section(document: ConfigDocument, name: str) -> CardSection:
    path: KeyPath = (SECTION, name)
    values = {key: value for key, value in document.section(path).items() if value is not None}
    where = {key: _location(document, (*path, key)) for key in values}
    return CardSection(name, values, where)


def _location(document: ConfigDocument, place: KeyPath) -> str:
    return f"{key_of(place)}, {at(document.file, document.line(place))}"


def checked(text: str, file: Path) -> ConfigDocument:
    """Return what `text`, the content of `file`, says; ConfigError with every problem."""
    document = ConfigDocument(text, file)
    schema.check_schema(document)
    if not document.problems:
        _check_profiles(document)
        for section in (NODE, USERS, *map(of_namespace, namespaces(document))):
            check(document, section)
    if document.problems:
        raise ConfigError(file, *sorted(document.problems))
    return document
