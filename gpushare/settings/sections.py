# SPDX-License-Identifier: Apache-2.0
"""Defaults, ceilings, trust, audit and compat of the node, of users and of namespaces, by section.

A section's key stands instead of the same key of the whole node, be it smaller or larger: so a
namespace can be an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final

from gpushare.quota import Ceilings, Defaults, Dialects, Terms, Together, Total, parse_size
from gpushare.quota.errors import quoted
from gpushare.settings.document import Document, Place, at

_BUILT_IN: Final = "a default of gpushare"
#: Whoever may log in may promise himself a part of a card: by default half of it, not all.
USERS_TOGETHER: Final = Together(
    memory_percent=50,
    cores=50,
    tenants=8,
    where={
        key: f"users.together.{key}, {_BUILT_IN}" for key in ("memory_percent", "cores", "tenants")
    },
)
#: ... nor does he put himself before the containers of others.
USERS_CEILINGS: Final = Ceilings(
    priority=5,
    classes=("offline",),
    where={key: f"users.ceilings.{key}, {_BUILT_IN}" for key in ("priority", "classes")},
)
NODE: Final[Place] = ()
USERS: Final[Place] = ("users",)


def of_namespace(name: str) -> Place:
    """Return the section of a namespace, by its name or pattern in the file."""
    return ("namespaces", name)


def _as_it_is(value: Any) -> Any:
    return value


#: Of each key of the file the field, and what makes its value.
_DEFAULTS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "memory": ("memory_bytes", parse_size),
    "cores": ("cores", _as_it_is),
    "policy": ("policy", _as_it_is),
    "whole_is_share": ("whole_is_share", _as_it_is),
    "placement": ("placement", _as_it_is),
    "numa": ("numa", _as_it_is),
}
_CEILINGS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
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
    "whole_cards": ("whole_cards", _as_it_is),
}
_TOGETHER: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "memory": ("memory_bytes", parse_size),
    "memory_percent": ("memory_percent", _as_it_is),
    "cores": ("cores", _as_it_is),
    "tenants": ("tenants", _as_it_is),
}
_TOTAL: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "memory": ("memory_bytes", parse_size),
    "cores": ("cores", _as_it_is),
    "cards": ("cards", _as_it_is),
    "tenants": ("tenants", _as_it_is),
}
_MODELS: Final = "models"
_ALL: Final = "all"


@dataclass(frozen=True)
class Said:
    """The keys of one part of a section with their values and where each is.

    A key of a model is `models.A100.memory`.
    """

    values: Mapping[str, Any]
    places: Mapping[str, Place]

    def fields(self, known: Mapping[str, tuple[str, Callable[[Any], Any]]]) -> dict[str, Any]:
        """Return the values by the field that each fills."""
        return {known[key][0]: known[key][1](value) for key, value in self.values.items()}


def said(document: Document, section: Place, part: str) -> Said:
    """Return what holds of `part` (defaults, ceilings, dialects ...) for a section: the nearer."""
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for above in dict.fromkeys((NODE, section)):
        for way, value in _leaves(document.section((*above, part))):
            key = ".".join(way)
            values[key], places[key] = value, (*above, part, *way)
    own = document.section((*section, part))
    if part == "ceilings" and "memory" in own and "memory_limit" not in own:
        # Who is given another ceiling of memory is not to go as far as others' bursts.
        values.pop("memory_limit", None)
    return Said(values, {key: places[key] for key in values})


def word(document: Document, section: Place, key: str) -> tuple[Any, Place]:
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


def terms(document: Document, section: Place = NODE) -> Terms:
    """Return the terms of `section` of a document that has been checked."""
    ceilings = said(document, section, "ceilings")
    together = said(document, section, "together")
    most = USERS_CEILINGS if section == USERS else Ceilings()
    held = replace(
        most,
        **ceilings.fields(_CEILINGS),
        where={**most.where, **_where(document, ceilings)},
    )
    defaults = Defaults(**said(document, section, "defaults").fields(_DEFAULTS))
    all_have = USERS_TOGETHER if section == USERS else Together()
    audit = said(document, section, "audit").values
    compat, _ = word(document, section, "compat")
    return Terms(
        **{key: audit[key] for key in ("over", "compute") if key in audit},
        **({} if compat is None else {"compat": compat}),
        defaults=held.held(defaults),
        ceilings=held,
        together=replace(
            all_have,
            **together.fields(_TOGETHER),
            where={**all_have.where, **_where(document, together)},
        ),
        total=_total(document, section),
        trust=said(document, section, "trust").values.get("env"),
        dialects=_dialects(document, section),
    )


def _dialects(document: Document, section: Place) -> Dialects:
    found = said(document, section, "dialects")
    values = dict(found.values)
    names = values.pop("accept", _ALL)
    accept = None if names == _ALL else frozenset(names)
    return Dialects(**values, accept=accept, where=_where(document, found))


def _total(document: Document, section: Place) -> Total:
    found = said(document, section, "total")
    where = _where(document, found)
    models: dict[str, Total] = {}
    own: dict[str, Any] = {}
    for key, value in found.values.items():
        way, _, last = key.rpartition(".")
        field, made = _TOTAL[last]
        if not way:
            own[field] = made(value)
            continue
        model = way.removeprefix(f"{_MODELS}.")
        before = models.get(model, Total())
        said_at = {**before.where, last: where[key]}
        models[model] = replace(before, **{field: made(value)}, where=said_at)
    return Total(**own, models=models, where=where)


def built_in(section: Place, part: str) -> dict[str, Any]:
    """Return what holds of `part` where no line of the file says it, by key."""
    if section == USERS and part == "ceilings":
        return {"priority": USERS_CEILINGS.priority, "classes": [*(USERS_CEILINGS.classes or ())]}
    if (section, part) != (USERS, "together"):
        return {}
    found = {key: getattr(USERS_TOGETHER, field) for key, (field, _) in _TOGETHER.items()}
    return {key: value for key, value in found.items() if value is not None}


def check(document: Document, section: Place) -> None:
    """Note what contradicts itself in `section`, or in it and in what it adds to."""
    ceilings, defaults = (said(document, section, part) for part in ("ceilings", "defaults"))
    limit, memory = (ceilings.values.get(key) for key in ("memory_limit", "memory"))
    if limit is not None and memory is not None and parse_size(limit) < parse_size(memory):
        told = f'"{limit}" is below the ceiling of memory, "{memory}"; write {memory} or more'
        _problem(document, section, ceilings.places["memory_limit"], told)
    if defaults.values.get("whole_is_share") and "memory" not in defaults.values:
        told = "a share of how much is not said; add memory: 4GiB beside it"
        _problem(document, section, defaults.places["whole_is_share"], told)
    policy, policies = defaults.values.get("policy"), ceilings.values.get("policies")
    if policy is not None and policies is not None and policy not in policies:
        told = f'"{policy}" is not among ceilings.policies; write {" or ".join(policies)}'
        _problem(document, section, defaults.places["policy"], told)
    _check_dialects(document, section)


def _check_dialects(document: Document, section: Place) -> None:
    found = said(document, section, "dialects")
    names = found.values.get("accept", _ALL)
    if names == _ALL or not names:
        return
    # Imported here: the clients read this package for its defaults and need no tables.
    from gpushare.quota.dialects import DIALECTS  # noqa: PLC0415

    for number, name in enumerate(names):
        if name not in DIALECTS:
            close = get_close_matches(name, DIALECTS, n=1, cutoff=0.6)
            fix = f"did you mean {close[0]}?" if close else "there are " + ", ".join(DIALECTS)
            place = (*found.places["accept"], number)
            _problem(document, section, place, f"{quoted(name)} is no dialect; {fix}")


def _problem(document: Document, section: Place, place: Place, text: str) -> None:
    """Note it once: what is wrong for the whole node is not told of each section."""
    if section == NODE or place[: len(section)] == section:
        document.problem(place, text)


def _where(document: Document, found: Said) -> dict[str, str]:
    return {
        key: f"{'.'.join(map(str, place))}, {at(document.file, document.line(place))}"
        for key, place in found.places.items()
    }


def namespaces(document: Document) -> list[str]:
    """Return the names and patterns of the document's namespaces, in its order."""
    return list(document.section(("namespaces",)))


def section_of(namespace: str, sections: list[str]) -> str | None:
    """Return which of `sections` is for `namespace`: its name itself, else the first pattern."""
    if not namespace:
        return None
    if namespace in sections:
        return namespace
    return next((name for name in sections if fnmatchcase(namespace, name)), None)
