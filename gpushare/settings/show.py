# SPDX-License-Identifier: Apache-2.0
"""What holds, key by key, and which line says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpushare.quota import Defaults, exact_size, parse_size
from gpushare.settings import rules, sections
from gpushare.settings.document import Document, Place, at, key_of

DEFAULT: Final = "default"
NOT_SET: Final = "-"
_SECTIONS: Final = ("users", "namespaces")


class Row(NamedTuple):
    """One key, its value (None: nothing) and its origin: `FILE:LINE`, `default` or `-`."""

    key: str
    value: Any
    origin: str


def node(document: Document) -> Iterator[Row]:
    """Yield every key of the file with what holds, then what it says of users and namespaces."""
    whole = rules.schema()
    properties = {name: part for name, part in whole["properties"].items() if name not in _SECTIONS}
    yield from _leaves(document, {**whole, "properties": properties}, whole, ())
    yield from section(document, sections.USERS, only_own=True)
    for name in sections.namespaces(document):
        yield from section(document, sections.of_namespace(name), only_own=True)


def section(document: Document, place: Place, *, only_own: bool = False) -> Iterator[Row]:
    """Yield what holds in a section, with what it has from the whole node if not `only_own`."""
    held = sections.terms(document, place).defaults
    for part in ("defaults", "ceilings", "together", "total", "trust", "dialects", "audit"):
        if place == sections.USERS and part in {"trust", "dialects", "audit"}:
            continue  # a host process has no image and no pod, and is judged as the node says
        said = sections.said(document, place, part)
        built_in = sections.built_in(place, part)
        for key in dict.fromkeys((*said.values, *built_in)):
            here = (*place, part, *key.split("."))
            if key not in said.values:
                yield Row(key_of(here), built_in[key], DEFAULT)
            elif not only_own or said.places[key] == here:
                origin = at(document.file, document.line(said.places[key]))
                yield _held(Row(key_of(here), said.values[key], origin), part, key, held)
    yield from _words(document, place, only_own=only_own)


def _words(document: Document, place: Place, *, only_own: bool) -> Iterator[Row]:
    """Yield the keys of a section that are no sections themselves."""
    for key in () if place == sections.USERS else ("compat",):
        value, where = sections.word(document, place, key)
        if where and (where == (*place, key) or not only_own):
            yield Row(key_of((*place, key)), value, at(document.file, document.line(where)))


def _held(row: Row, part: str, key: str, defaults: Defaults) -> Row:
    """Return `row` with what is left of a default under its ceiling."""
    if part != "defaults" or key not in {"memory", "cores"}:
        return row
    left = defaults.cores if key == "cores" else defaults.memory_bytes
    if left is None or left == (row.value if key == "cores" else parse_size(row.value)):
        return row
    value = left if key == "cores" else exact_size(left)
    return Row(row.key, value, f"{row.origin}, held to ceilings.{key}")


def _leaves(
    document: Document, part: Mapping[str, Any], whole: Mapping[str, Any], place: Place
) -> Iterator[Row]:
    for name, found in part["properties"].items():
        below, here = rules.resolved(found, whole), (*place, name)
        value = document.at(here)
        if "properties" in below:
            yield from _leaves(document, below, whole, here)
        elif isinstance(value, dict) and value:  # of names that are the file's own
            for name_of_its, its in value.items():
                for key, said in (its or {}).items():
                    way = (*here, name_of_its, key)
                    yield Row(key_of(way), said, at(document.file, document.line(way)))
        elif value is not None:
            row = Row(key_of(here), value, at(document.file, document.line(here)))
            yield _held(row, str(here[0]), name, sections.terms(document).defaults)
        else:
            default = below.get("default")
            yield Row(key_of(here), default, NOT_SET if default is None else DEFAULT)
