# SPDX-License-Identifier: Apache-2.0
"""The sections of gpushare.yaml, and what is wrong with them.

A section's key stands instead of the same key of the whole node, be it smaller or larger: so a
namespace can be an exception. `schema` reads the text, with the line of every key, and checks its
form. gpushare/config.py has the result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gpushare
from gpushare import remote_gpu
from gpushare.errors import ErrorCode, UserError
from gpushare.quota.effective_request import Defaults, resolve_request
from gpushare.quota.errors import BadValue, QuotaError, quoted
from gpushare.quota.keys import full_policy, parse_duration, request_from
from gpushare.quota.request import RequestedValue, ValueSource
from gpushare.quota.request_policy import (
    Dialects,
    IdlePolicy,
    MaxPerCard,
    MaxPerNode,
    MaxPerRequest,
    RequestPolicy,
    ShareProfile,
    profile,
)
from gpushare.quota.size import parse_size
from gpushare.text_position import KeyPath, UnreadableText, at, key_of, read_text
from gpushare.yaml_nodes import TYPE_NAMES, YamlNode, YamlRules, parse

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


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


#: Keys whose field has another name or form; of the others, it is the key's own.
_FIELDS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "memory": ("memory_bytes", parse_size),
    "memory_limit": ("memory_limit_bytes", parse_size),
    "mode": ("shared_by_default", lambda mode: mode == "shared"),
    "policy": ("policy", full_policy),
    "policies": ("policies", lambda names: tuple(map(full_policy, names))),
    "classes": ("classes", tuple),
    "backends": ("backends", tuple),
}
_AUDIT: Final[Mapping[str, str]] = {"over_quota": "over", "gate_bypass": "compute"}
_ALL: Final = "all"
PROFILES: Final = "profiles"


@dataclass(frozen=True)
class SectionValues:
    """The keys of one part of a section with their values and where each is."""

    values: Mapping[str, Any]
    places: Mapping[str, KeyPath]

    def fields(self) -> dict[str, Any]:
        """Return the values by the field that each fills."""
        found = {}
        for key, value in self.values.items():
            field_name, make = _FIELDS.get(key, (key, None))
            found[field_name] = value if make is None else make(value)
        return found


def section_values(document: ConfigDocument, section: KeyPath, part: str) -> SectionValues:
    """Return what holds of `part` (defaults, ceilings, dialects ...) for a section: the nearer."""
    values: dict[str, Any] = {}
    places: dict[str, KeyPath] = {}
    for above in dict.fromkeys((NODE, section)):
        for key, value in document.section((*above, part)).items():
            if value is not None:
                values[key], places[key] = value, (*above, part, key)
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


def terms(document: ConfigDocument, section: KeyPath = NODE) -> RequestPolicy:
    """Return the terms of `section` of a document that has been checked."""
    ceilings = section_values(document, section, "max_per_request")
    together = section_values(document, section, "max_per_card")
    totals = section_values(document, section, "max_per_node")
    most = USERS_MAX_PER_REQUEST if section == USERS else MaxPerRequest()
    most_per_request = replace(
        most,
        **ceilings.fields(),
        where={**most.where, **_where(document, ceilings)},
    )
    of_section = section_values(document, section, "defaults")
    own = {key for key, place in of_section.places.items() if place[0] != "defaults"}
    defaults = Defaults(**of_section.fields(), own=frozenset(own))
    all_have = USERS_MAX_PER_CARD if section == USERS else MaxPerCard()
    audit = section_values(document, section, "audit").values
    compat, _ = word(document, section, "compatibility")
    return RequestPolicy(
        **{field: audit[key] for key, field in _AUDIT.items() if key in audit},
        **({} if compat is None else {"compat": compat}),
        defaults=most_per_request.limit_defaults(defaults),
        max_per_request=most_per_request,
        max_per_card=replace(
            all_have,
            **together.fields(),
            where={**all_have.where, **_where(document, together)},
        ),
        max_per_node=MaxPerNode(**totals.fields(), where=_where(document, totals)),
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
    dialects = section_values(document, section, "dialects")
    values = dict(dialects.values)
    names = values.pop("accept", _ALL)
    accept = None if names == _ALL else frozenset(names)
    if "unaccepted" in values:
        values["others"] = values.pop("unaccepted")
    weighs = values.pop("translated_cores", "reserve") == "weight"
    return Dialects(**values, accept=accept, weighs=weighs, where=_where(document, dialects))


def built_in(section: KeyPath, part: str) -> dict[str, Any]:
    """Return what holds of `part` where no line of the file says it, by key."""
    parts = {"max_per_request": USERS_MAX_PER_REQUEST, "max_per_card": USERS_MAX_PER_CARD}
    if section != USERS or part not in parts:
        return {}
    ceilings = {key: getattr(parts[part], key) for key in parts[part].where}
    return {key: [*value] if isinstance(value, tuple) else value for key, value in ceilings.items()}


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
    known = set(map(full_policy, policies or ()))
    if policy is not None and policies is not None and full_policy(policy) not in known:
        text = f'"{policy}" is not among max_per_request.policies; write {" or ".join(policies)}'
        _problem(document, section, defaults.places["policy"], text)
    _check_dialects(document, section)


def _check_dialects(document: ConfigDocument, section: KeyPath) -> None:
    dialects = section_values(document, section, "dialects")
    names = dialects.values.get("accept", _ALL)
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
            place = (*dialects.places["accept"], number)
            _problem(document, section, place, f"{quoted(name)} is not a dialect; {fix}")


def _problem(document: ConfigDocument, section: KeyPath, place: KeyPath, text: str) -> None:
    """Note it once: what is wrong for the whole node is not repeated for each section."""
    if section == NODE or place[: len(section)] == section:
        document.problem(place, text)


def _where(document: ConfigDocument, values: SectionValues) -> dict[str, str]:
    return {
        key: f"{'.'.join(map(str, place))}, {at(document.file, document.line(place))}"
        for key, place in values.places.items()
    }


def profiles(document: ConfigDocument) -> dict[str, ShareProfile]:
    """Return the profiles of a document whose form has been checked, by name, in its order."""
    return {
        name: profile(name, document.section((PROFILES, name)))
        for name in document.section((PROFILES,))
    }


def _check_profiles(document: ConfigDocument) -> None:
    for name, share_profile in profiles(document).items():
        section = document.section((PROFILES, name))
        has = [key for key in ("memory", "equal") if section.get(key) is not None]
        if len(has) != 1:
            both = "sets memory twice; keep one of memory and equal"
            text = both if has else "sets no memory; add memory: 4GiB or equal: 4"
            document.problem((PROFILES, name, *has[1:]), text)
            continue
        source = ValueSource("default", key_of((PROFILES, name)))
        try:
            resolve_request(request_from(share_profile.layer(RequestedValue(name, name, source))))
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
    or "mps" if the card's shares are clients of an MPS server; `mps_trusted` says that they trust
    each other. `where` has for each key of the file
    where the file says it.
    """

    mode: str = ANY
    max_tenants: int = 16
    backend: str = INTERPOSER
    mps_trusted: bool = False
    where: Mapping[str, str] = field(default_factory=dict, compare=False)
    cordoned_by: str | None = None  # the annotation of the node that cordons it

    def source(self, key: str) -> str:
        """Return ` (cards.H200.backend, line 4)`; empty where the file does not say it."""
        return f" ({self.where[key]})" if key in self.where else ""

    @property
    def most_tenants(self) -> str:
        """The maximum of shares, and where it is from."""
        return f"{self.max_tenants} ({self.where.get('max_tenants', 'max_tenants')})"


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
    check_schema(document)
    if not document.problems:
        _check_profiles(document)
        if remote := document.section(("remote",)):
            for place, problem in remote_gpu.problems(remote):
                document.problem(place, problem)
        for section in (NODE, USERS, *map(of_namespace, namespaces(document))):
            check(document, section)
    if document.problems:
        raise ConfigError(file, *sorted(document.problems))
    return document


# --- the text of gpushare.yaml by gpushare.schema.json, and violations as messages ---
#
# The schema is the only description of the keys. The text is less than YAML, so that what is read
# is what was meant: a scalar is text unless it is null, `true`, `false` or a decimal number (YAML
# 1.1 takes `on` for true, `010` for eight and `1:30` for ninety), keys are text and come once, and
# there are no anchors, aliases and tags, by which a small file can be a huge one.

MAX_BYTES: Final = 1 << 18
MAX_DEPTH: Final = 16

RULES: Final = YamlRules(MAX_DEPTH, plain=True)

_SCALARS: Final[tuple[tuple[re.Pattern[str], Callable[[str], object]], ...]] = (
    (re.compile(r"~|null|Null|NULL|"), lambda _: None),
    (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    (re.compile(r"-?(0|[1-9][0-9]{0,17})"), int),
    (re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?"), float),
)


@dataclass(frozen=True, order=True)
class ConfigProblem:
    """One problem: the line (0: no single line), the key, the rule and the fix."""

    line: int
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class ConfigError(UserError):
    """The configuration cannot be used; the text has a line for each problem, with its fix."""

    code = ErrorCode.INVALID

    def __init__(self, file: Path, *problems: ConfigProblem) -> None:
        self.file = file
        self.problems = problems
        super().__init__("\n".join(f"{at(file, found.line)}: {found}" for found in problems))


def text_of(file: Path) -> str:
    """Return the text of `file`; ConfigError if it cannot be read."""
    try:
        return read_text(file, MAX_BYTES, "gpushare.yaml")
    except UnreadableText as error:
        problem = ConfigProblem(error.fault.line, "", error.fault.message)
        raise ConfigError(file, problem) from error


class ConfigDocument:
    """The content of a text. Problems are collected, so that all are reported at once."""

    def __init__(self, text: str, file: Path) -> None:
        self.file = file
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[ConfigProblem] = []
        self._overlaid: dict[KeyPath, str] = {}
        try:
            roots = parse(text, RULES).roots
        except UnreadableText as error:
            raise ConfigError(
                file, ConfigProblem(error.fault.line, "", error.fault.message)
            ) from error
        content = self._value(roots[0], ()) if roots else None
        if content is not None and not isinstance(content, dict):
            text = "not a mapping; write lines like `max_tenants: 16`"
            raise ConfigError(file, ConfigProblem(1, "", text))
        self.content: dict[str, Any] = content or {}

    def at(self, place: KeyPath) -> Any:
        """Return the value at `place`; None where it, or a part of the way, is not there."""
        value: Any = self.content
        for part in place:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int):
                value = value[part]
            else:
                return None
        return value

    def section(self, place: KeyPath) -> Mapping[str, Any]:
        """Return the mapping at `place`; empty where it is not there."""
        value = self.at(place)
        return value if isinstance(value, dict) else {}

    def line(self, place: KeyPath) -> int:
        """Return the line of the value at `place`, or of the nearest that is there around it."""
        around = (place[:length] for length in range(len(place), 0, -1))
        return next((self.lines[known] for known in around if known in self.lines), 0)

    def origin(self, place: KeyPath) -> str:
        """Return `FILE:LINE` of the value at `place`, or what has set it instead of the file."""
        return self._overlaid.get(place) or at(self.file, self.line(place))

    def overlay(self, place: KeyPath, value: Any, origin: str) -> None:
        """Have `value` be at `place`, from `origin` and not from the file."""
        section = self.content
        for part in place[:-1]:
            current = section.get(str(part)) or {}
            section[str(part)] = current
            section = current
        section[str(place[-1])] = value
        self._overlaid[place] = origin

    def problem(self, place: KeyPath, text: str) -> None:
        """Record a problem at `place`."""
        self.problems.append(ConfigProblem(self.line(place), key_of(place), text))

    def _value(self, node: YamlNode, place: KeyPath) -> Any:
        if node.kind == "mapping":
            return self._mapping(node, place)
        if node.kind == "sequence":
            items = [((*place, number), item) for number, item in enumerate(node.items)]
            self.lines |= {path: item.line for path, item in items}
            return [self._value(item, path) for path, item in items]
        read = next((read for known, read in _SCALARS if known.fullmatch(node.text)), str)
        return node.text if node.style else read(node.text)

    def _mapping(self, node: YamlNode, place: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for entry in node.entries:
            line = entry.key.line
            if entry.key.kind != "scalar":
                problem = ConfigProblem(line, key_of(place), "a key must be plain text")
                self.problems.append(problem)
                continue
            path = (*place, entry.key.text)
            if path in self.lines:
                first = f"is a duplicate of line {self.lines[path]}; keep one"
                self.problems.append(ConfigProblem(line, key_of(path), first))
                continue
            self.lines[path] = line
            mapping[entry.key.text] = self._value(entry.value, path)
        return mapping


NAME: Final = "gpushare.schema.json"


def load_schema() -> dict[str, Any]:
    """Return the JSON schema, from the source tree or from beside the installed package."""
    folders = (Path(__file__).parents[1] / "configs", *map(Path, gpushare.__path__))
    file = next(folder / NAME for folder in folders if (folder / NAME).is_file())
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema


def resolved(part: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what `part` refers to, with its own words in front; itself where it refers to none."""
    if "$ref" not in part:
        return part
    return {**whole["$defs"][part["$ref"].rpartition("/")[2]], **part}


def check_schema(document: ConfigDocument) -> None:
    """Record every place of `document` that violates the schema."""
    # Imported here: the clients read this package for its defaults and do without the validator.
    import jsonschema  # noqa: PLC0415

    whole = load_schema()
    validator = jsonschema.Draft202012Validator(whole)
    for error in validator.iter_errors(document.content):
        place = tuple(error.absolute_path)
        for where, text in _violations(error, place):
            document.problem(where, text)
    for place in _sizes(document.content, whole):
        _check_size(document, place)


def _violations(error: ValidationError, place: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Yield each place that `error` is about, and what is wrong there with its fix."""
    part, value = error.schema, error.instance
    assert isinstance(part, Mapping)
    if value is None and part.get("type") == "object":
        return  # all of the section is commented out
    if error.validator == "additionalProperties":
        assert isinstance(value, dict)
        known = list(part["properties"])
        for name in value:
            if name not in known:
                yield (*place, name), f"unknown key; {_meant(name, known)}"
    elif error.validator == "required":
        assert isinstance(value, dict)
        missing = next(name for name in part["required"] if name not in value)
        yield place, f"requires {missing}; write e.g. {missing}: {_example(part, missing)}"
    elif "propertyNames" in error.schema_path:
        is_namespace = place == ("namespaces",)
        what = "namespace name or pattern (* matches any part)" if is_namespace else "name"
        yield (*place, str(value)), f"is not a valid {what}; {_fix(part)}"
    elif part.get("format") != "size":  # those are read, below
        yield place, f"{_shown(value)} {_rule(error, part)}; {_fix(part, value)}"


def _meant(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "the keys here are " + ", ".join(known)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else json.dumps(value)


def _rule(error: ValidationError, part: Mapping[str, Any]) -> str:
    if error.validator == "type":
        return f"is not {_type_of(part)}"
    if error.validator in {"minimum", "exclusiveMinimum"}:
        return "is too small"
    if error.validator == "maximum":
        return "is too large"
    if error.validator == "enum":
        return "is not a valid value"
    if error.validator == "pattern":
        return "is not an absolute path" if part["pattern"] == "^/" else "has an invalid format"
    rules = {
        "uniqueItems": "has duplicate items",
        "minItems": "is empty",
        "maxItems": f"is longer than {part.get('maxItems')}",
    }
    return rules.get(str(error.validator), error.message)


def _fix(part: Mapping[str, Any], value: Any = None) -> str:
    """Return what to write instead, from the schema's own words."""
    if "enum" in part:
        choices = [str(choice) for choice in part["enum"]]
        close = get_close_matches(str(value), choices, n=1, cutoff=0.6)
        meant = f"; did you mean {close[0]}?" if close else ""
        return "write one of " + ", ".join(choices) + meant
    if "examples" in part:
        return f"write e.g. {part['examples'][0]}"
    if "minimum" in part:
        return f"write a number from {part['minimum']} to {part['maximum']}"
    if part.get("type") == "array" and "enum" in part.get("items", {}):
        return f"write a list of {', '.join(part['items']['enum'])}"
    return f"write {_type_of(part)}"


def _example(part: Mapping[str, Any], key: str) -> Any:
    return part["properties"][key]["examples"][0]


def _type_of(part: Mapping[str, Any]) -> str:
    kinds = part.get("type", "")
    types = [kinds] if isinstance(kinds, str) else kinds
    return " or ".join(TYPE_NAMES.get(each, "a value") for each in types)


def _sizes(content: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield the places where the schema has sizes and `content` has a value."""

    def walk(value: Any, part: Mapping[str, Any], place: KeyPath) -> Iterator[KeyPath]:
        part = resolved(part, whole)
        if part.get("format") == "size":
            yield place
        elif isinstance(value, dict):
            others = part.get("additionalProperties")
            for name, below in value.items():
                described = part.get("properties", {}).get(name, others)
                if isinstance(described, dict):
                    yield from walk(below, described, (*place, name))

    return walk(content, whole, ())


#: Sizes that may be nothing.
_MAY_BE_ZERO: Final[frozenset[KeyPath]] = frozenset(
    {("system_reserved",), ("oversubscribe", "host_memory")}
)


def _check_size(document: ConfigDocument, place: KeyPath) -> None:
    value = document.at(place)
    if isinstance(value, bool | dict | list | None):
        document.problem(place, f"{_shown(value)} is not a size; write e.g. 4GiB")
        return
    if place in _MAY_BE_ZERO and value in {"0", "0B", 0}:
        return
    try:
        parse_size(str(value))
    except BadValue as bad:
        document.problem(place, f"{_shown(value)} {bad.rule}; {bad.fix}")
