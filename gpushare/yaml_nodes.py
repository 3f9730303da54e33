# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON as nodes that know their position in a text that anybody may have written.

A node is where it is written: aliases are nodes of their own, and a block ends with its last
character, before comments and empty lines. `fields`, `items` and `value_at` read through aliases
and merge keys, which compose files depend on. With those a small file can expand to a huge one, so
what a text expands to is bounded, and nodes may be walked by plain recursion.

libyaml only yields events, without recursion and twenty times as fast as PyYAML's own parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import yaml

from gpushare.text_position import Fault, KeyPath, UnreadableText

NodeKind: TypeAlias = Literal["scalar", "mapping", "sequence", "alias"]

MAX_BYTES: Final = 4 << 20
MAX_VALUES: Final = 100_000
MERGE: Final = "<<"

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL: Final = "tag:yaml.org,2002:null"
_TEXT: Final = "tag:yaml.org,2002:str"
#: libyaml's own limit (PyYAML 6.0.4: 1000): its scanner reads ahead of us.
_SCANNER_TOO_DEEP: Final = "exceeded maximum nesting depth"
_KINDS: Final[Mapping[str, str]] = {
    _NULL: "nothing",
    "tag:yaml.org,2002:bool": "true or false",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:float": "a number",
}
#: The types of a JSON schema, in words.
TYPE_NAMES: Final = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_IMPLICIT: Final[Mapping[str, Any]] = yaml.SafeLoader.yaml_implicit_resolvers
_JSON: Final = re.compile(r"\s*[\[{]")
_HALVES: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HELM: Final = re.compile(r"\{\{-?\s*(?:[.$(]|(?:if|range|include|with|define|template|toYaml)\b)")


class YamlRules(NamedTuple):
    """How much of YAML a text may use; `plain`: one document without anchors, aliases and tags."""

    max_depth: int = 64
    plain: bool = False


MANIFEST_RULES: Final = YamlRules()


@dataclass(eq=False)
class YamlNode:
    """One node; `start` and `end` are indices into the text, `line` and `column` count from 1.

    `text` is the value of a scalar or the name of an alias, `style` the quotes of a scalar (`"`,
    `'`, `|`, `>`, or none), `tag` what a reader of YAML takes a scalar for. `entries` are written
    in this mapping, `fields` are its entries by key, with those that `<<` merges into it and with
    aliases resolved. `target` is what an alias stands for, `parent` the collection around a node.
    `values` and `height` count what it expands to.
    """

    kind: NodeKind
    start: int
    end: int
    line: int
    column: int
    text: str = ""
    style: str = ""
    tag: str = ""
    flow: bool = False
    anchor: str = ""
    entries: list[MappingEntry] = field(default_factory=list)
    fields: dict[str, MappingEntry] = field(default_factory=dict)
    items: list[YamlNode] = field(default_factory=list)
    target: YamlNode | None = field(default=None, repr=False)
    parent: YamlNode | None = field(default=None, repr=False)
    values: int = 1
    height: int = 1

    @property
    def resolved(self) -> YamlNode:
        """The node itself, or what an alias stands for."""
        return self.target if self.target is not None else self

    @property
    def root(self) -> YamlNode:
        """The root of the document that the node is written in."""
        return self if self.parent is None else self.parent.root

    @property
    def path(self) -> KeyPath:
        """The keys and indices that lead to it from the root, as they are written."""
        if self.parent is None:
            return ()
        keys = [entry.key.text for entry in self.parent.entries if self in {entry.key, entry.value}]
        return (*self.parent.path, keys[0] if keys else self.parent.items.index(self))

    @property
    def is_empty(self) -> bool:
        """Whether it has no content: `key:` without a value, `{}`, `[]`."""
        if self.kind == "scalar":
            return not self.style and self.text in {"", "~", "null"}
        return self.kind != "alias" and not self.entries and not self.items

    def entry(self, key: str) -> MappingEntry | None:
        """Return the entry of `key` that is written in this mapping."""
        return next((e for e in self.entries if e.key.text == key), None)

    def get(self, key: str) -> YamlNode | None:
        """Return the value of `key` in this mapping, through aliases and merged mappings."""
        return self.fields[key].value if key in self.fields else None

    def walk(self) -> Iterator[YamlNode]:
        """Yield it and all that is written in it."""
        yield self
        for entry in self.entries:
            yield from entry.key.walk()
            yield from entry.value.walk()
        for item in self.items:
            yield from item.walk()


@dataclass(eq=False)
class MappingEntry:
    """A key of a mapping, and its value."""

    key: YamlNode
    value: YamlNode

    @property
    def is_merge(self) -> bool:
        """Whether it merges other mappings into its own."""
        return self.key.text == MERGE and not self.key.style


class DuplicateKey(NamedTuple):
    """A key that a mapping has a second time; the first one counts here."""

    key: YamlNode
    first: YamlNode


class ParsedText(NamedTuple):
    """The root of each document of a text, and the keys that a mapping has twice."""

    roots: tuple[YamlNode, ...]
    duplicates: tuple[DuplicateKey, ...]


def parse(text: str, rules: YamlRules = MANIFEST_RULES, max_values: int = MAX_VALUES) -> ParsedText:
    """Return the nodes of `text`; UnreadableText if it is not YAML, or more than it may be."""
    control = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if control is not None:  # libyaml would report it by its byte
        line = text.count("\n", 0, control.start()) + 1
        fault = Fault(line, 0, f"has the character U+{ord(control.group()):04X}; take it out")
        raise UnreadableText(fault)
    composer = _Composer(text, rules, max_values)
    try:
        return ParsedText(tuple(composer.roots()), tuple(composer.duplicates))
    except yaml.YAMLError as error:
        raise UnreadableText(_fault(error, text, rules)) from error


def _fault(error: yaml.YAMLError, text: str, rules: YamlRules) -> Fault:
    helm = _HELM.search(text)
    if helm:
        line = text.count("\n", 0, helm.start()) + 1
        message = "a template of Helm, not YAML yet; write `helm template . | gpushare ... -`"
        return Fault(line, helm.start() - text.rfind("\n", 0, helm.start()), message)
    assert isinstance(error, yaml.MarkedYAMLError)
    mark = error.problem_mark
    if mark is None:
        return Fault(0, 0, f"not YAML: {error.problem}")
    if error.problem == _SCANNER_TOO_DEEP:
        return Fault(mark.line + 1, mark.column + 1, _too_deep(rules))
    fix = "; indent with spaces" if text[mark.index : mark.index + 1] == "\t" else ""
    return Fault(mark.line + 1, mark.column + 1, f"not YAML: {error.problem}{fix}")


class _Composer:
    def __init__(self, text: str, rules: YamlRules, most: int) -> None:
        self.duplicates: list[DuplicateKey] = []
        self._text = text
        self._rules = rules
        self._most = most
        self._events: Iterator[Any] = yaml.parse(_readable(text), Loader=_LOADER)
        self._anchors: dict[str, YamlNode | None] = {}
        self._written = 0
        self._expanded = 0  # values of the documents before, as node.values

    def roots(self) -> Iterator[YamlNode]:
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if self._rules.plain and documents > 1:
                    raise _refusal(event, "not YAML: but found another document")
                self._anchors = {}
                root = self._node(next(self._events), 1)
                self._expanded += root.values
                yield root

    def _node(self, event: Any, depth: int) -> YamlNode:
        if self._rules.plain:
            _refuse_anchors_and_tags(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        self._count(event, 1)
        if depth > self._rules.max_depth:
            raise _refusal(event, _too_deep(self._rules))
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # until it is whole
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, depth)
        else:
            node = self._mapping(event, depth)
        if self._expanded + node.values > (most := self._most):
            raise _refusal(
                event, f"comes to over {most} values; use fewer aliases, or split the file"
            )
        if event.anchor is not None:
            node.anchor = event.anchor
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, depth: int) -> YamlNode:
        if event.anchor not in self._anchors:
            raise _refusal(event, f"*{event.anchor} has no &{event.anchor} before it")
        target = self._anchors[event.anchor]
        if target is None:
            raise _refusal(event, f"*{event.anchor} stands within itself; write it out")
        if depth - 1 + target.height > self._rules.max_depth:
            raise _refusal(event, _too_deep(self._rules))
        node = _made(event, "alias")
        node.text, node.target = event.anchor, target
        node.values, node.height = target.values, target.height
        return node

    def _scalar(self, event: yaml.ScalarEvent) -> YamlNode:
        node = _made(event, "scalar")
        node.text, node.style = event.value, event.style or ""
        if node.style in {"|", ">"}:  # libyaml's ends where the next line begins
            node.end = node.start + len(self._text[node.start : node.end].rstrip())
        node.tag = event.tag or _TEXT
        if event.tag is None and event.implicit[0]:
            node.tag = _implicit_tag(event.value)
        elif event.tag == "!":
            node.tag = _TEXT
        return node

    def _sequence(self, start: Any, depth: int) -> YamlNode:
        node = _made(start, "sequence")
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            node.items.append(self._node(event, depth + 1))
        _close(node, node.items, event)
        return node

    def _mapping(self, start: Any, depth: int) -> YamlNode:
        node = _made(start, "mapping")
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            node.entries.append(MappingEntry(key, self._node(next(self._events), depth + 1)))
        _close(node, [one for entry in node.entries for one in (entry.key, entry.value)], event)
        self._fill_fields(node)
        return node

    def _fill_fields(self, node: YamlNode) -> None:
        merged: dict[str, MappingEntry] = {}
        for entry in node.entries:
            key = entry.key.resolved
            if key.kind != "scalar":
                continue  # no format that is read here has such a key
            if entry.is_merge:
                value = entry.value.resolved
                for other in value.items if value.kind == "sequence" else [value]:
                    self._count(entry.key, len(other.resolved.fields))
                    for name, of_other in other.resolved.fields.items():
                        merged.setdefault(name, of_other)
            elif key.text in node.fields:
                self.duplicates.append(DuplicateKey(key, node.fields[key.text].key))
            else:
                node.fields[key.text] = MappingEntry(key, entry.value.resolved)
        node.fields = {**merged, **node.fields}

    def _count(self, where: Any, values: int) -> None:
        self._written += values
        if self._written > (most := self._most):
            raise _refusal(where, f"comes to over {most} values; split the file")


def _too_deep(rules: YamlRules) -> str:
    if rules.plain:
        return f"not YAML: nested more than {rules.max_depth} deep"
    return f"nested more than {rules.max_depth} deep; write it flatter"


def _refuse_anchors_and_tags(event: Any) -> None:
    if event.anchor is not None:
        message = "anchors and aliases (&name, *name) are not taken; write the value out"
        raise _refusal(event, f"not YAML: {message}")
    if getattr(event, "tag", None) is not None:
        raise _refusal(event, "not YAML: tags (!name) are not taken; write the value alone")


def _refusal(where: Any, message: str) -> UnreadableText:
    """Return the refusal of an event, or of a node."""
    if isinstance(where, YamlNode):
        return UnreadableText(Fault(where.line, where.column, message))
    mark = where.start_mark
    return UnreadableText(Fault(mark.line + 1, mark.column + 1, message))


def _made(event: Any, kind: NodeKind) -> YamlNode:
    start, end = event.start_mark, event.end_mark
    node = YamlNode(kind, start.index, end.index, start.line + 1, start.column + 1)
    node.flow = bool(getattr(event, "flow_style", False))
    return node


def _close(node: YamlNode, parts: list[YamlNode], event: Any) -> None:
    """Set what a collection learns from its parts, and from the event that ends it."""
    node.end = event.end_mark.index if node.flow else node.end
    if parts and not node.flow:
        node.end = max(part.end for part in parts[-2:])
    for part in parts:
        part.parent = node
    node.values = 1 + sum(part.values for part in parts)
    node.height = 1 + max((part.height for part in parts), default=0)


def _readable(text: str) -> str:
    """Return `text`, of the same length, without what JSON allows and libyaml does not."""
    if _JSON.match(text):
        text = text.replace("\t", " ")
    # Both halves of a letter outside the first plane; no key or value that is looked at has one.
    return _HALVES.sub(r"\\ufffd\\ufffd", text)


def _implicit_tag(text: str) -> str:
    """Return the tag of a plain scalar by YAML 1.1 as go-yaml has it.

    go-yaml has no dates and no numbers to the base of sixty.
    """
    if ":" in text:
        return _TEXT
    known = _IMPLICIT.get(text[:1], ())
    return next((tag for tag, pattern in known if tag in _KINDS and pattern.match(text)), _TEXT)


def fields(node: YamlNode | None) -> dict[str, MappingEntry]:
    """Return the entries of a mapping by key, merged ones included; {} for anything else."""
    return {} if node is None else node.fields


def items(node: YamlNode | None) -> list[YamlNode]:
    """Return the items of a list, aliases resolved; [] for anything else."""
    return [] if node is None else [item.resolved for item in node.items]


def value_at(node: YamlNode | None, *keys: str) -> YamlNode | None:
    """Return the value that `keys` lead to beneath a mapping, None if there is none."""
    for key in keys:
        node = None if node is None else node.get(key)
    return node


def find(root: YamlNode, path: KeyPath) -> YamlNode | None:
    """Return the node that keys and indices lead to, through aliases and merges."""
    node: YamlNode | None = root.resolved
    for step in path:
        if isinstance(step, str):
            node = value_at(node, step)
        else:
            within = [] if node is None else node.items
            node = within[step].resolved if step < len(within) else None
    return node


def scalar_text(node: YamlNode | None) -> str | None:
    """Return the text of a scalar as it is written; None for `null` and for other nodes."""
    if node is None or node.kind != "scalar" or node.tag == _NULL:
        return None
    return node.text


def text_at(node: YamlNode | None, *keys: str) -> str:
    """Return the text of the scalar that `keys` lead to beneath a mapping; empty without one."""
    return scalar_text(value_at(node, *keys)) or ""


def kind_name(node: YamlNode) -> str:
    """Return what `node` is, in words: `a mapping`, `a list`, `true or false`, `text`."""
    if node.kind in {"mapping", "sequence"}:
        return "a mapping" if node.kind == "mapping" else "a list"
    return _KINDS.get(node.tag, "text")
