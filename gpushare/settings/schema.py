# SPDX-License-Identifier: Apache-2.0
"""The text of gpushare.yaml by gpushare.schema.json, and violations as messages.

The schema is the only description of the keys. The text is less than YAML, so that what is read is
what was meant: a scalar is text unless it is null, `true`, `false` or a decimal number (YAML 1.1
takes `on` for true, `010` for eight and `1:30` for ninety), keys are text and come once, and there
are no anchors, aliases and tags, by which a small file can be a huge one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gpushare
from gpushare.errors import ErrorCode, UserError
from gpushare.quota.errors import BadValue, quoted
from gpushare.quota.size import parse_size
from gpushare.text_position import KeyPath, UnreadableText, at, key_of, read_text
from gpushare.yaml_nodes import YamlNode, YamlRules, parse

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

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
        found: Any = self.content
        for part in place:
            if isinstance(found, dict):
                found = found.get(part)
            elif isinstance(found, list) and isinstance(part, int):
                found = found[part]
            else:
                return None
        return found

    def section(self, place: KeyPath) -> Mapping[str, Any]:
        """Return the mapping at `place`; empty where it is not there."""
        found = self.at(place)
        return found if isinstance(found, dict) else {}

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
            found = section.get(str(part)) or {}
            section[str(part)] = found
            section = found
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
        found: dict[str, Any] = {}
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
            found[entry.key.text] = self._value(entry.value, path)
        return found


NAME: Final = "gpushare.schema.json"
_TYPES: Final = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


def load_schema() -> dict[str, Any]:
    """Return the JSON schema, from the source tree or from beside the installed package."""
    installed = [Path(folder) for folder in gpushare.__path__]
    for place in (Path(__file__).parents[2] / "configs", *installed):
        if (place / NAME).is_file():
            found: dict[str, Any] = json.loads((place / NAME).read_text(encoding="utf-8"))
            return found
    where = installed[0] / NAME
    raise ConfigError(where, ConfigProblem(0, "", "is missing; reinstall gpushare"))


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
    elif "propertyNames" in error.schema_path:
        yield (
            (*place, str(value)),
            f"is not a valid namespace name or pattern (* matches any part); {_fix(part)}",
        )
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


def _type_of(part: Mapping[str, Any]) -> str:
    kinds = part.get("type", "")
    types = [kinds] if isinstance(kinds, str) else kinds
    return " or ".join(_TYPES.get(each, "a value") for each in types)


def _sizes(content: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield the places where the schema has sizes and `content` has a value."""

    def walk(value: Any, part: Mapping[str, Any], place: KeyPath) -> Iterator[KeyPath]:
        part = resolved(part, whole)
        if part.get("format") == "size":
            yield place
        elif isinstance(value, dict):
            others = part.get("additionalProperties")
            for name, below in value.items():
                found = part.get("properties", {}).get(name, others)
                if isinstance(found, dict):
                    yield from walk(below, found, (*place, name))

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
