# SPDX-License-Identifier: Apache-2.0
"""The shape of a YAML text: where each node begins and ends, with aliases where they stand.

PyYAML's nodes do not say where an alias is written, and a block of theirs ends at the next token,
behind comments and empty lines. Here a node ends with its last letter. JSON is YAML in flow style.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import yaml

Kind: TypeAlias = Literal["scalar", "mapping", "sequence", "alias"]
Step: TypeAlias = "str | int"

MERGE: Final = "<<"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(eq=False)
class Node:
    """One node; `start` and `end` count characters of the whole text.

    `text` is a scalar's value or an alias's name; `style` a scalar's quotes (`"`, `'`, `|`, `>`, or
    none); an alias stands for `target`. `parent` is the collection that it is written in.
    """

    kind: Kind
    start: int
    end: int
    text: str = ""
    style: str = ""
    flow: bool = False
    anchor: str = ""
    entries: list[Entry] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    target: Node | None = None
    parent: Node | None = None

    @property
    def meant(self) -> Node:
        """The node itself, or what an alias stands for."""
        return self.target if self.target is not None else self

    @property
    def empty(self) -> bool:
        """Whether it is nothing at all: `key:` with no value, `{}`, `[]`."""
        if self.kind == "scalar":
            return not self.style and self.text in {"", "~", "null"}
        return self.kind != "alias" and not self.entries and not self.items

    def entry(self, key: str) -> Entry | None:
        """Return the entry of `key` that is written in this mapping; the last one counts."""
        return next((e for e in reversed(self.entries) if e.key.text == key), None)

    def get(self, key: str) -> Node | None:
        """Return what `key` of this mapping means, through aliases and merged mappings."""
        own = self.entry(key)
        if own is not None:
            return own.value.meant
        for merged in self.merged():
            found = merged.get(key)
            if found is not None:
                return found
        return None

    def merged(self) -> Iterator[Node]:
        """Yield the mappings that `<<` merges into this one, the stronger first."""
        for entry in self.entries:
            if entry.key.text == MERGE and not entry.key.style:
                value = entry.value.meant
                yield from [value] if value.kind == "mapping" else [i.meant for i in value.items]

    def children(self) -> Iterator[Node]:
        """Yield what is written directly in it."""
        for entry in self.entries:
            yield entry.key
            yield entry.value
        yield from self.items

    def walk(self) -> Iterator[Node]:
        """Yield it and all that is written in it."""
        yield self
        for child in self.children():
            yield from child.walk()


@dataclass(eq=False)
class Entry:
    """A key of a mapping, and its value."""

    key: Node
    value: Node

    @property
    def start(self) -> int:
        """Where its key begins."""
        return self.key.start

    @property
    def end(self) -> int:
        """Where its value ends; of no value, behind the colon."""
        return max(self.key.end, self.value.end)


def trees(text: str) -> list[Node]:
    """Return the root of each document in `text`, an empty one left out; yaml.YAMLError."""
    roots: list[Node] = []
    open_nodes: list[Node] = []
    pending: list[Node | None] = []  # the key that waits for its value, of each open node
    anchors: dict[str, Node] = {}
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.DocumentStartEvent):
            anchors = {}
            continue
        if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            _close(open_nodes.pop(), event)
            pending.pop()
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        node = _node(event, text, anchors)
        if open_nodes:
            _put(open_nodes[-1], pending, node)
        else:
            roots.append(node)
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append(node)
            pending.append(None)
    return [root for root in roots if not root.empty or root.kind != "scalar"]


def _node(event: yaml.NodeEvent, text: str, anchors: dict[str, Node]) -> Node:
    assert event.start_mark is not None
    assert event.end_mark is not None
    start, end = event.start_mark.index, event.end_mark.index
    if isinstance(event, yaml.AliasEvent):
        name = event.anchor or ""
        return Node("alias", start, end, text=name, target=anchors.get(name))
    if isinstance(event, yaml.ScalarEvent):
        style = event.style or ""
        if style in {"|", ">"}:
            end = len(text[:end].rstrip())  # PyYAML's ends where the next line begins
        made = Node("scalar", start, end, text=event.value, style=style)
    else:
        assert isinstance(event, yaml.CollectionStartEvent)
        mapping = isinstance(event, yaml.MappingStartEvent)
        made = Node("mapping" if mapping else "sequence", start, end, flow=bool(event.flow_style))
    if event.anchor:
        made.anchor = event.anchor
        anchors[event.anchor] = made
    return made


def _put(parent: Node, pending: list[Node | None], node: Node) -> None:
    node.parent = parent
    if parent.kind == "sequence":
        parent.items.append(node)
    elif pending[-1] is None:
        pending[-1] = node
    else:
        parent.entries.append(Entry(pending[-1], node))
        pending[-1] = None


def _close(node: Node, event: yaml.Event) -> None:
    if node.flow:
        assert event.end_mark is not None
        node.end = event.end_mark.index
    elif node.entries:
        node.end = node.entries[-1].end
    elif node.items:
        node.end = node.items[-1].end


def find(root: Node, place: tuple[Step, ...]) -> Node | None:
    """Return the node at `place`, by keys and numbers of items, through aliases and merges."""
    node: Node | None = root.meant
    for step in place:
        if node is None:
            return None
        if isinstance(step, int):
            node = node.items[step].meant if step < len(node.items) else None
        else:
            node = node.get(step)
    return node
