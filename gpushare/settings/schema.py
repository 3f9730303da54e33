# SPDX-License-Identifier: Apache-2.0
"""gpushare.schema.json, the only description of the keys, and violations as messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gpushare
from gpushare.quota import BadValue, parse_size
from gpushare.quota.errors import quoted
from gpushare.settings.document import ConfigDocument, ConfigError, ConfigProblem, KeyPath

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

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


def check(document: ConfigDocument) -> None:
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


def _check_size(document: ConfigDocument, place: KeyPath) -> None:
    value = document.at(place)
    if isinstance(value, bool | dict | list | None):
        document.problem(place, f"{_shown(value)} is not a size; write e.g. 4GiB")
        return
    if place == ("system_reserved",) and value in {"0", "0B", 0}:
        return
    try:
        parse_size(str(value))
    except BadValue as bad:
        document.problem(place, f"{_shown(value)} {bad.rule}; {bad.fix}")
