# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON to nodes that know where they stand, of text that anybody may have written.

Anchors, aliases and merge keys are taken, for compose files live by them; by those a small file can
be a huge one, so what it comes to is bounded: bytes, depth, and values with every alias written
out. What is read through these nodes may therefore be walked by plain recursion.

libyaml is asked for events, which it gives without recursion and twenty times as fast as PyYAML's
own parser; the nodes are PyYAML's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml

from gpushare.manifest.errors import ManifestError
from gpushare.marks import Fault, fault_of, not_printable

MAX_BYTES: Final = 4 << 20
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 500_000

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE: Final = "<<"
_NULL: Final = "tag:yaml.org,2002:null"
_TEXT: Final = "tag:yaml.org,2002:str"
_KINDS: Final[Mapping[str, str]] = {
    _NULL: "nothing",
    "tag:yaml.org,2002:bool": "true or false",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:float": "a number",
}
_JSON: Final = re.compile(r"\s*[\[{]")
_HALVES: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HELM: Final = re.compile(r"\{\{-?\s*(?:[.$(]|(?:if|range|include|with|define|template|toYaml)\b)")


class Entry(NamedTuple):
    """One key of a mapping and its value; both stand elsewhere where an alias brought them."""

    key: yaml.ScalarNode
    value: yaml.Node


class Twice(NamedTuple):
    """A key that a mapping has a second time; the readers of this field take it for an error."""

    key: yaml.ScalarNode
    first: yaml.ScalarNode


class MappingNode(yaml.MappingNode):
    """A mapping with its entries by key, merge keys done: what is written in it comes first."""

    entries: dict[str, Entry]


class Text(NamedTuple):
    """What a text comes to: a root for each of its documents, and the keys that are there twice."""

    roots: tuple[yaml.Node, ...]
    twice: tuple[Twice, ...]


def compose(text: str, path: str) -> Text:
    """Return the nodes of `text`, the content of `path`; ManifestError where there are none."""
    no_letter = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if no_letter is not None:  # libyaml would tell of it by the byte
        raise ManifestError(path, not_printable(text, no_letter.start()))
    composer = _Composer(text, path)
    try:
        return Text(tuple(composer.roots()), tuple(composer.twice))
    except yaml.YAMLError as error:
        fault = _fault(error, text)
        raise ManifestError(path, fault) from error


def _fault(error: yaml.YAMLError, text: str) -> Fault:
    helm = _HELM.search(text)
    if helm:
        line = text.count("\n", 0, helm.start()) + 1
        told = "a template of Helm, not YAML yet; write `helm template . | gpushare ... -`"
        return Fault(line, helm.start() - text.rfind("\n", 0, helm.start()), told)
    return fault_of(error, text)


class _Made(NamedTuple):
    node: yaml.Node
    values: int  # with what aliases bring
    height: int


class _Composer:
    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.twice: list[Twice] = []
        self._events: Iterator[Any] = yaml.parse(readable(text), Loader=_LOADER)
        self._resolver = _Resolver()
        self._anchors: dict[str, _Made | None] = {}
        self._written = 0

    def roots(self) -> Iterator[yaml.Node]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                yield self._made(next(self._events), 1).node

    def _made(self, event: Any, depth: int) -> _Made:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        self._count(event, 1)
        if depth > MAX_DEPTH:
            raise self._refused(event, f"nested more than {MAX_DEPTH} deep; write it flatter")
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            self._anchors[anchor] = None  # until it is whole
        if isinstance(event, yaml.ScalarEvent):
            made = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            made = self._sequence(event, depth)
        else:
            made = self._mapping(event, depth)
        if made.values > MAX_VALUES:
            raise self._refused(event, f"comes to over {MAX_VALUES} values; use fewer aliases")
        if anchor is not None:
            self._anchors[anchor] = made
        return made

    def _alias(self, event: Any, depth: int) -> _Made:
        if event.anchor not in self._anchors:
            raise self._refused(event, f"*{event.anchor} has no &{event.anchor} before it")
        made = self._anchors[event.anchor]
        if made is None:
            raise self._refused(event, f"*{event.anchor} stands within itself; write it out")
        if depth - 1 + made.height > MAX_DEPTH:
            raise self._refused(event, f"nested more than {MAX_DEPTH} deep; write it flatter")
        return made

    def _scalar(self, event: Any) -> _Made:
        tag = event.tag
        if tag is None or tag == "!":
            plain = event.implicit[0] and tag is None
            tag = self._resolver.tag_of(event.value) if plain else _TEXT
        marks = event.start_mark, event.end_mark
        return _Made(yaml.ScalarNode(tag, event.value, *marks, style=event.style), 1, 1)

    def _sequence(self, start: Any, depth: int) -> _Made:
        items: list[_Made] = []
        while not isinstance(end := next(self._events), yaml.SequenceEndEvent):
            items.append(self._made(end, depth + 1))
        marks: tuple[Any, Any] = start.start_mark, end.end_mark
        node = yaml.SequenceNode(
            start.tag or "tag:yaml.org,2002:seq",
            [item.node for item in items],
            *marks,
            flow_style=start.flow_style,
        )
        return _Made(node, *_size(items))

    def _mapping(self, start: Any, depth: int) -> _Made:
        pairs: list[tuple[_Made, _Made]] = []
        while not isinstance(end := next(self._events), yaml.MappingEndEvent):
            key = self._made(end, depth + 1)
            pairs.append((key, self._made(next(self._events), depth + 1)))
        marks: tuple[Any, Any] = start.start_mark, end.end_mark
        node = MappingNode(
            start.tag or "tag:yaml.org,2002:map",
            [(key.node, value.node) for key, value in pairs],
            *marks,
            flow_style=start.flow_style,
        )
        self._fill(node)
        return _Made(node, *_size([one for pair in pairs for one in pair]))

    def _fill(self, node: MappingNode) -> None:
        node.entries = {}
        below: dict[str, Entry] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # no format that is read here has such a key
            if key.value == _MERGE and not key.style:
                for other in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    brought = entries(other)
                    self._count(key, len(brought))
                    below = {**brought, **below}
            elif key.value in node.entries:
                self.twice.append(Twice(key, node.entries[key.value].key))
            else:
                node.entries[key.value] = Entry(key, value)
        node.entries = {**below, **node.entries}

    def _count(self, event: Any, values: int) -> None:
        self._written += values
        if self._written > MAX_VALUES:
            raise self._refused(event, f"comes to over {MAX_VALUES} values; split the file")

    def _refused(self, event: Any, told: str) -> ManifestError:
        mark = event.start_mark
        return ManifestError(self.path, Fault(mark.line + 1, mark.column + 1, told))


def _size(parts: list[_Made]) -> tuple[int, int]:
    height = max((part.height for part in parts), default=0)
    return 1 + sum(part.values for part in parts), 1 + height


def readable(text: str) -> str:
    """Return `text`, of the same length, with what JSON may have and a reader of YAML not take."""
    if _JSON.match(text):
        text = text.replace("\t", " ")
    # Both halves of a letter outside the first plane; no key or value that is looked at has one.
    return _HALVES.sub(r"\\ufffd\\ufffd", text)


class _Resolver:
    """What a plain scalar is to the readers of this field: YAML 1.1, as go-yaml has it.

    It has no dates and no numbers to the base of sixty.
    """

    def __init__(self) -> None:
        self._known: Mapping[str, Any] = yaml.SafeLoader.yaml_implicit_resolvers

    def tag_of(self, text: str) -> str:
        found = self._known.get(text[:1], ())
        tag = next((tag for tag, pattern in found if tag in _KINDS and pattern.match(text)), _TEXT)
        return _TEXT if ":" in text else tag


def entries(node: yaml.Node | None) -> dict[str, Entry]:
    """Return the entries of a mapping; of anything else none."""
    return node.entries if isinstance(node, MappingNode) else {}


def items(node: yaml.Node | None) -> list[yaml.Node]:
    """Return the items of a list; of anything else none."""
    return node.value if isinstance(node, yaml.SequenceNode) else []


def below(node: yaml.Node | None, *way: str) -> yaml.Node | None:
    """Return what stands at `way` beneath a mapping; None where there is nothing."""
    for key in way:
        entry = entries(node).get(key)
        if entry is None:
            return None
        node = entry.value
    return node


def word(node: yaml.Node | None) -> str | None:
    """Return the text of a scalar as it is written, `null` and what is no scalar being None."""
    return node.value if isinstance(node, yaml.ScalarNode) and node.tag != _NULL else None


def is_text(node: yaml.Node) -> bool:
    """Whether `node` is text to a reader of YAML: `"true"` is, and `true` is not."""
    return kind(node) == "text"


def kind(node: yaml.Node) -> str:
    """Return what `node` is, in words: `a mapping`, `a list`, `true or false`, `text`."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return _KINDS.get(node.tag, "text")
