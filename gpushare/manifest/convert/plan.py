# SPDX-License-Identifier: Apache-2.0
"""What is to change in a document, by the paths at which it is read, and the text with it.

An alias or a merge key may bring one text to several paths. A change is made where the text is
written, and the result is read again: what differs from the plan refuses the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from gpushare.manifest.convert.edits import CannotEdit, Data, NewText, Quoted, RemovedComments
from gpushare.text_position import KeyPath, UnreadableText, key_of
from gpushare.yaml_nodes import YamlNode, find, parse

if TYPE_CHECKING:
    from gpushare.manifest.convert.round_trip import DocumentTree

#: What goes with the last entry or item in it.
PRUNED: Final = frozenset(
    [
        "annotations",
        "env",
        "environment",
        "labels",
        "limits",
        "metadata",
        "nvidiaMps",
        "requests",
        "resourceRequirements",
        "resources",
    ]
)


#: Letters; ruamel.yaml takes ten seconds for so many.
MAX_LENGTH: Final = 1 << 20
_JSON_INDENT: Final = re.compile(r"\n([ \t]+)")


@dataclass
class _Site:
    """What changes in a collection: keys or items that go, and what comes."""

    node: YamlNode
    path: KeyPath
    going: list[YamlNode] = field(default_factory=list)
    new: list[Any] = field(default_factory=list)

    @property
    def is_emptied(self) -> bool:
        """Whether nothing is left in it."""
        return len(self.going) == len(self.node.entries or self.node.items) and not self.new


class DocumentEdits:
    """The changes of one document: `text` is part `number` of its file, `root` its root."""

    def __init__(self, number: int, text: str, root: YamlNode) -> None:
        self.number = number
        self._text = text
        self._root = root
        self._going: dict[KeyPath, None] = {}
        self._new: dict[KeyPath, list[Any]] = {}
        self._after: dict[KeyPath, str | None] = {}
        self._written_in: dict[KeyPath, YamlNode] = {}
        self._sites: dict[int, _Site] = {}
        self._unchanged = text
        self._tree: DocumentTree | None = None

    def at(self, path: KeyPath) -> YamlNode:
        """Return the node at `path`; KeyError where there is none."""
        node = find(self._root, path)
        if node is None:
            raise KeyError(path)
        return node

    def remove(self, path: KeyPath) -> None:
        """Take out the entry or the item at `path`."""
        self._going[path] = None

    def add(
        self,
        path: KeyPath,
        way: Sequence[str],
        new: Sequence[NewText],
        *,
        after: str | None = None,
        site: YamlNode | None = None,
    ) -> None:
        """Put entries into the mapping at `way` beneath `path`, and make what is not there.

        They come behind the key `after`. `site` is what they are written in, if not that mapping.
        """
        base = self.at(path)
        for number, name in enumerate(way):
            child = base.get(name)
            if child is None or (child.is_empty and child.kind != "sequence"):
                new = [NewText(name, tuple(_nested(way[number + 1 :], new)))]
                break
            if child.kind != "mapping":
                raise CannotEdit(f"{name} is not a mapping; write one", child.line)
            base, path = child, (*path, name)
        self._after.setdefault(path, after)
        if site is not None:
            self._written_in[path] = site
        for one in new:
            _merge(self._new.setdefault(path, []), one)

    def add_items(self, path: KeyPath, name: str, new: Sequence[Data]) -> None:
        """Put items into the list `name` of the mapping at `path`."""
        child = self.at(path).get(name)
        if child is None or child.is_empty:
            self._new.setdefault(path, []).append(NewText(name, list(new)))
        elif child.kind != "sequence":
            raise CannotEdit(f"{name} is not a list; write one", child.line)
        else:
            self._new.setdefault((*path, name), []).extend(new)

    # --- the text ---

    def comments(self) -> Iterator[tuple[KeyPath, RemovedComments]]:
        """Remove what goes; yield the comments of it, with their path."""
        self._prune()
        self._locate()
        if not self._sites:
            return
        if self._text.lstrip()[:1] in {"{", "["} and (data := _loaded(self._text)) is not None:
            self._unchanged = self._json(data)
            return
        self._refuse()
        from gpushare.manifest.convert.round_trip import (  # noqa: PLC0415 - only to write YAML
            DocumentTree,
        )

        self._tree = DocumentTree(self._text, self._root)
        self._unchanged = self._tree.text()
        removed = [
            (site, self._tree.remove(site.going, replaced=bool(site.new)))
            for site in sorted(self._sites.values(), key=lambda site: -len(site.node.path))
            if site.going
        ]
        for site, found in sorted(removed, key=lambda one: one[0].node.start):
            yield site.path, found

    def apply(self) -> str:
        """Return the text of the document with its changes; CannotEdit if it had others."""
        if not self._sites:
            return self._text
        if self._tree is None:
            made = self._json(self._changed(_loaded(self._text), _json_value))
        else:
            for site in self._sites.values():
                if site.new:
                    self._tree.insert(site.node, site.new, self._after.get(site.path))
            made = self._tree.text()
        with suppress(CannotEdit):  # where lines are indented in two ways then
            return self._verified(_restored(self._text, self._unchanged, made))
        return self._verified(made)

    def _prune(self) -> None:
        """Let a collection go that has nothing left in it."""
        waiting = [path[:-1] for path in self._going]
        while waiting:
            path = waiting.pop()
            node = self.at(path)
            parts = {(*path, name) for name in node.fields or range(len(node.items))}
            named = not PRUNED.isdisjoint(path[-1:]) and path not in self._new
            if named and parts <= self._going.keys():
                self._going[path] = None
                waiting.append(path[:-1])

    def _locate(self) -> None:
        """Find where the text has what changes; what merges an emptied mapping goes, too."""
        for path, new in self._new.items():
            site = self._site(self._written_in.get(path, self.at(path)), path)
            site.new += [one for one in new if one not in site.new]
        for path in self._going:
            of = self.at(path[:-1])
            part = of.items[path[-1]] if isinstance(path[-1], int) else of.fields[path[-1]].key
            self._remove_part(part, path[:-1])
        waiting = list(self._sites.values())
        while waiting:
            site = waiting.pop()
            if not site.node.anchor or not site.is_emptied:
                continue
            for node in self._root.walk():
                for entry in node.entries:
                    merged = entry.is_merge and entry.value.target is site.node
                    extension = node is self._root and entry.key.text.startswith("x-")
                    if merged or (extension and entry.value is site.node):
                        waiting.append(self._remove_part(entry.key, site.path))

    def _site(self, node: YamlNode, path: KeyPath) -> _Site:
        return self._sites.setdefault(id(node), _Site(node, path))

    def _remove_part(self, part: YamlNode, path: KeyPath) -> _Site:
        assert part.parent is not None
        site = self._site(part.parent, path)
        if part not in site.going:
            site.going.append(part)
        return site

    def _refuse(self) -> None:
        """Refuse what ruamel.yaml would damage, or take long for."""
        if len(self._text) > MAX_LENGTH:
            why = "this document is larger than 1 MiB; split it into several (---)"
            raise CannotEdit(why, self._root.line)
        for key in (entry.key for node in self._root.walk() for entry in node.entries):
            if key.resolved.kind != "scalar":
                why = "a key that is not a text; render the template first, or quote its {{ }}"
                raise CannotEdit(why, key.line)

    def _json(self, data: Any) -> str:
        found = _JSON_INDENT.search(self._text)
        indent, ascii_only = found[1] if found else None, self._text.isascii()
        return json.dumps(data, indent=indent, ensure_ascii=ascii_only) + "\n"

    def _changed(self, data: Any, made: Callable[[Data], Any]) -> Any:
        """Return `data`, which the document has, with the changes; `made` makes what comes."""
        going: dict[KeyPath, list[Any]] = {}
        places: dict[KeyPath, int] = {}
        for path in self._going:
            going.setdefault(path[:-1], []).append(path[-1])
        for path in sorted(going, key=len, reverse=True):
            of = _inner(data, path)
            order = list(of) if isinstance(of, dict) else list(range(len(of)))
            places[path] = min(order.index(name) for name in going[path])
            for name in sorted(going[path], reverse=True):
                del of[name]
        for path, new in self._new.items():
            of, after = _inner(data, path), self._after.get(path)
            at = len(of) if after not in of else 0 if after == "" else list(of).index(after) + 1
            at = places.get(path, 0 if after == "" else at)
            if isinstance(of, list):
                of[at:at] = [made(one) for one in new]
                continue
            of.update({one.key: made(one.value) for one in new if one.key in of})
            tail = [(key, of.pop(key)) for key in list(of)[at:]]
            of.update({one.key: made(one.value) for one in new if one.key not in dict(tail)})
            of.update(tail)
        return data

    def _verified(self, text: str) -> str:
        """Return the text; CannotEdit if it is not what the plan makes of the document."""
        try:
            (root,) = parse(text).roots
        except (UnreadableText, ValueError) as error:
            raise CannotEdit(f"the result could not be read again: {error}", 1) from error
        first, second = self._changed(_content(self._root), _content_of), _content(root)
        leaves = [list(_leaves(one)) for one in (first, second)]
        if any(entry.is_merge for node in self._root.walk() for entry in node.entries):
            leaves = [sorted(one, key=repr) for one in leaves]  # their order has no meaning
        pairs = zip_longest(*leaves, fillvalue=((), None))
        found = next(((one[0], other[0]) for one, other in pairs if one != other), None)
        path = found and found[found[1] not in dict(leaves[0])]
        while path is not None:
            if node := find(self._root, path):
                why = f"{key_of(path)} would change, too; write out what an alias shares with it"
                raise CannotEdit(why, node.line)
            path = path[:-1]
        return text


def _restored(text: str, unchanged: str, made: str) -> str:
    """Return `made` with lines as they are in `text`, where it has those of `unchanged`.

    `unchanged` is `text` as it would be written without changes: in one indentation, for example.
    """
    if text == unchanged:
        return made
    before, plain, after = (one.splitlines(keepends=True) for one in (text, unchanged, made))
    equal = SequenceMatcher(None, plain, after).get_matching_blocks()
    parts = []
    for _, start, end, first, last in SequenceMatcher(None, plain, before).get_opcodes():
        if end - start == last - first:
            parts += [(start + n, start + n + 1, [before[first + n]]) for n in range(end - start)]
        else:
            parts.append((start, end, before[first:last]))
    for start, end, lines in reversed(parts):
        for block in equal:
            if block.a <= start and end <= block.a + block.size:
                after[start - block.a + block.b : end - block.a + block.b] = lines
                break
    return "".join(after)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _json_value(value: Data) -> Any:
    if isinstance(value, tuple):
        return {one.key: _json_value(one.value) for one in value}
    if isinstance(value, list):
        return [_json_value(one) for one in value]
    return value.text if isinstance(value, Quoted) else value


def _content_of(value: Data) -> Any:
    return _content(parse(json.dumps(_json_value(value))).roots[0])


def _content(node: YamlNode) -> Any:
    """Return what a node holds, aliases and merge keys resolved; a scalar as text and tag."""
    node = node.resolved
    if node.kind == "mapping":
        return {key: _content(entry.value) for key, entry in node.fields.items()}
    if node.kind == "sequence":
        return [_content(item) for item in node.items]
    return node.text, node.tag


def _leaves(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each value with its path, but for what compose takes through aliases alone (`x-`)."""
    if isinstance(data, tuple):
        yield path, data
        return
    yield path, type(data)
    for name in data if isinstance(data, dict) else range(len(data)):
        if path or not str(name).startswith("x-"):
            yield from _leaves(data[name], (*path, name))


def _inner(data: Any, path: KeyPath) -> Any:
    for step in path:
        data = data[step]
    return data


def _nested(way: Sequence[str], new: Sequence[NewText]) -> list[NewText]:
    if not way:
        return list(new)
    return [NewText(way[0], tuple(_nested(way[1:], new)))]


def _merge(into: list[NewText], new: NewText) -> None:
    """Put a mapping beside others that are new, or into the one of its name."""
    for number, one in enumerate(into):
        if one.key == new.key and isinstance(one.value, tuple) and isinstance(new.value, tuple):
            inner = list(one.value)
            for entry in new.value:
                _merge(inner, entry)
            into[number] = replace(one, value=tuple(inner))
            return
    into.append(new)
