# SPDX-License-Identifier: Apache-2.0
"""The changes of a document, by the paths at which it is read, and the text with them.

An alias or a merge key may bring one text to several paths. A change is made where the text is
written, and the result is read again: what differs from the plan refuses the document.
"""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import zip_longest
from operator import attrgetter
from typing import Any, Final, TypeAlias

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import (
    DoubleQuotedScalarString,
    FoldedScalarString,
    LiteralScalarString,
)
from ruamel.yaml.tag import Tag
from ruamel.yaml.tokens import CommentToken

from gpushare.text_position import KeyPath, UnreadableText, key_of
from gpushare.yaml_nodes import YamlNode, find, parse

#: The text that goes with the last entry or item in it.
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
        "deploy",
        "reservations",
        "resources",
    ]
)


#: Letters; ruamel.yaml takes ten seconds for so many.
MAX_LENGTH: Final = 1 << 20
_JSON_INDENT: Final = re.compile(r"\n([ \t]+)")


@dataclass
class _Site:
    """The changes of a collection: keys or items that go, and entries that come."""

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
        """Return the node at `path`, which is there."""
        node = find(self._root, path)
        assert node is not None
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
        for entry in new:
            _merge(self._new.setdefault(path, []), entry)

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

        self._tree = DocumentTree(self._text, self._root)
        self._unchanged = self._tree.text()
        removed = [
            (site, self._tree.remove(site.going, replaced=bool(site.new)))
            for site in sorted(self._sites.values(), key=lambda site: -len(site.node.path))
            if site.going
        ]
        for site, removal in sorted(removed, key=lambda one: one[0].node.start):
            yield site.path, removal

    def apply(self) -> str:
        """Return the text of the document with its changes; CannotEdit if it had others."""
        if not self._sites:
            return self._text
        if self._tree is None:
            text = self._json(self._changed(_loaded(self._text), _json_value))
        else:
            for site in self._sites.values():
                if site.new:
                    self._tree.insert(site.node, site.new, self._after.get(site.path))
            text = self._tree.text()
        with suppress(CannotEdit):  # where lines are indented in two ways then
            return self._verified(_restored(self._text, self._unchanged, text))
        return self._verified(text)

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
        indent_match = _JSON_INDENT.search(self._text)
        indent, ascii_only = indent_match[1] if indent_match else None, self._text.isascii()
        return json.dumps(data, indent=indent, ensure_ascii=ascii_only) + "\n"

    def _changed(self, data: Any, converted: Callable[[Data], Any]) -> Any:
        """Return `data`, which the document has, with the changes; `converted` makes what comes."""
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
                of[at:at] = [converted(entry) for entry in new]
                continue
            of.update({entry.key: converted(entry.value) for entry in new if entry.key in of})
            tail = [(key, of.pop(key)) for key in list(of)[at:]]
            of.update(
                {entry.key: converted(entry.value) for entry in new if entry.key not in dict(tail)}
            )
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
            leaves = [sorted(leaf, key=repr) for leaf in leaves]  # their order has no meaning
        pairs = zip_longest(*leaves, fillvalue=((), None))
        difference = next(((one[0], other[0]) for one, other in pairs if one != other), None)
        path = difference and difference[difference[1] not in dict(leaves[0])]
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
    before, plain, after = (part.splitlines(keepends=True) for part in (text, unchanged, made))
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
        return {item.key: _json_value(item.value) for item in value}
    if isinstance(value, list):
        return [_json_value(item) for item in value]
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
    for number, item in enumerate(into):
        if item.key == new.key and isinstance(item.value, tuple) and isinstance(new.value, tuple):
            inner = list(item.value)
            for entry in new.value:
                _merge(inner, entry)
            into[number] = replace(item, value=tuple(inner))
            return
    into.append(new)


# --- a YAML document as ruamel.yaml's tree, with comments, quotes and indentation ---
#
# ruamel.yaml reads YAML 1.2, and manifests are YAML 1.1 (`010`, `yes`). So each scalar is a text
# here, and `<<` is a key as any other: the tree is what is written. ruamel.yaml attaches the
# comments and empty lines beneath an entry to the last line of the entry: `_cut` takes them off,
# before the entry goes or another comes behind it, and `_paste` attaches them to what stands there
# then.

_TEXT: Final = Tag(suffix="tag:yaml.org,2002:str")
_UNBROKEN: Final = 1 << 30
# Where a token is in the list that ruamel.yaml has for an entry.
_ABOVE: Final = 1
_BEHIND: Final = {CommentedMap: 2, CommentedSeq: 0}
_COLLECTIONS: Final = (CommentedMap, CommentedSeq)
_BLOCK_TEXTS: Final = (FoldedScalarString, LiteralScalarString)


class _Texts(VersionedResolver):
    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        return _TEXT if kind is ScalarNode else super().resolve(kind, value, implicit)


class DocumentTree:
    """The tree of one document; what is in it is found by its node."""

    def __init__(self, text: str, root: YamlNode) -> None:
        self._yaml = YAML()
        self._yaml.Resolver = _Texts
        self._yaml.preserve_quotes = True
        self._yaml.width = _UNBROKEN
        self._step, self._offset, self._dash = _indentation(root)
        sequence = self._offset + self._dash
        self._yaml.indent(mapping=self._step, sequence=sequence, offset=self._offset)
        self._places: dict[int, tuple[int, str]] = {}
        self._break = "\r\n" if "\r\n" in text else "\n"
        try:
            self._root = self._yaml.load(text.replace("\r\n", "\n"))
        except (YAMLError, ValueError) as error:
            why = " ".join(str(error).split())
            raise CannotEdit(f"ruamel.yaml cannot read it: {why}", root.line) from error
        # With an item of a list its value, because its place may change.
        self._aliases = {
            (id(holder), key if isinstance(key, str) else id(holder[key]))
            for holder, key in (self._place(n) for n in root.walk() if n.kind == "alias")
        }

    def text(self) -> str:
        """Return the document as it is now."""
        written = io.StringIO()
        self._yaml.dump(self._root, written)
        return written.getvalue().replace("\n", self._break)

    def _at(self, node: YamlNode) -> Any:
        node_there = self._root
        for step in node.path:
            node_there = node_there[step]
        return node_there

    def _place(self, node: YamlNode) -> tuple[Any, Any]:
        """Return the collection that an item, a key or its value is in, and its place there."""
        assert node.parent is not None
        return self._at(node.parent), node.path[-1]

    def remove(self, parts: Sequence[YamlNode], *, replaced: bool) -> RemovedComments:
        """Remove items, or the entries of keys, from their collection; return their comments.

        `replaced`: something is inserted where the first of them is.
        """
        removed = RemovedComments()
        parts = sorted(parts, key=attrgetter("start"))
        for part in reversed(parts):
            holder, key = self._place(part)
            at = _index(holder, key)
            below = self._cut(holder, key)
            self._take_comments(holder, key, removed)
            del holder[key]
            if isinstance(key, str):
                holder.ca.items.pop(key, None)
            if replaced and part is parts[0]:
                self._places[id(holder)] = (at, below)
            elif at:
                if at == len(holder) and not replaced:  # what is right above was about it
                    lines = self._cut(holder, _key_at(holder, at - 1)).splitlines(keepends=True)
                    blank = max(
                        (n for n, line in enumerate(lines, 1) if not line.strip()), default=0
                    )
                    removed.above[:0] = [line.strip() for line in lines[blank:]]
                    below = "".join(lines[:blank]) + below
                self._paste(holder, at, below)
            elif not holder and part.parent and part.parent.parent:
                outer, name = self._place(part.parent)
                self._paste(outer, _index(outer, name) + 1, below)
            else:
                removed.above += [line.strip() for line in below.splitlines() if line.strip()]
        return removed

    def insert(
        self, site: YamlNode, new: Sequence[NewText] | Sequence[Data], after: str | None
    ) -> None:
        """Put entries or items where others were removed, or behind `after`, or the last one.

        An entry that is there gets the new value.
        """
        holder, column = self._at(site), self._column(site)
        fresh = []
        for entry in new:
            if isinstance(entry, NewText) and entry.key in holder:
                below = self._cut(holder, entry.key)
                holder[entry.key] = self._built(entry.value, column + self._step)
                self._paste(holder, _index(holder, entry.key) + 1, below)
            else:
                fresh.append(entry)
        at = _index(holder, after) + 1 if after in holder else 0 if after == "" else len(holder)
        if id(holder) in self._places:
            at, below = self._places[id(holder)]
        else:
            below = self._cut(holder, _key_at(holder, at - 1)) if at else ""
        for number, entry in enumerate(fresh, at):
            self._put(holder, number, entry, column)
        self._paste(holder, at + len(fresh), below)

    def _put(self, holder: Any, at: int, entry: NewText | Data, column: int) -> None:
        """Put an entry or an item with its comments at a place; lines begin at `column`."""
        above: list[str] = []
        key: Any = at
        if isinstance(entry, NewText):
            above, key = entry.above, _scalar(entry.key)
            within = self._offset if isinstance(entry.value, list) else self._step
            holder.insert(at, key, self._built(entry.value, column + within))
        else:
            if isinstance(entry, tuple):
                above, entry = entry[0].above, (replace(entry[0], above=[]), *entry[1:])
            holder.insert(at, self._built(entry, column + self._dash))
        if holder.fa.flow_style():
            return
        if above:
            text = "".join(" " * column + comment + "\n" for comment in above)
            _slots(holder, key)[_ABOVE] = [_token(text)]
        if isinstance(entry, NewText) and entry.behind:
            _slots(holder, key)[_BEHIND[type(holder)]] = _token(f" {entry.behind}\n")

    def _built(self, value: Data, column: int) -> Any:
        """Return a value for a tree; the lines of a collection begin at `column`."""
        if not isinstance(value, (tuple, list)):
            return _scalar(value)
        collection = CommentedMap() if isinstance(value, tuple) else CommentedSeq()
        for number, entry in enumerate(value):
            self._put(collection, number, entry, column)
        return collection

    def _column(self, site: YamlNode) -> int:
        """Return the column of the entries, or of the dashes, of a collection."""
        if site.entries:
            return site.entries[0].key.column - 1
        return site.items[0].column - 1 - self._dash if site.items else 0

    # --- comments ---

    def _last(self, holder: Any, key: Any) -> tuple[Any, Any]:
        """Return the collection and the key whose line is the last one of an entry."""
        value = holder[key]
        if not value or not self._is_written(holder, key) or value.fa.flow_style():
            return holder, key
        return self._last(value, _key_at(value, len(value) - 1))

    def _is_written(self, holder: Any, key: Any) -> bool:
        """Whether a value is a collection, and no alias of one."""
        alias = (id(holder), key if isinstance(key, str) else id(holder[key])) in self._aliases
        return isinstance(holder[key], _COLLECTIONS) and not alias

    def _cut(self, holder: Any, key: Any) -> str:
        """Take the lines beneath an entry off it."""
        holder, key = self._last(holder, key)
        slots, behind = _slots(holder, key), _BEHIND[type(holder)]
        if slots[behind] is None:
            return ""
        comment, below = "", str(slots[behind].value)
        if not isinstance(holder[key], _BLOCK_TEXTS):
            comment, _, below = below.partition("\n")
        slots[behind].value = comment + "\n"
        if not comment:
            slots[behind] = None
        return below

    def _paste(self, holder: Any, at: int, below: str) -> None:
        """Attach lines to the entry before a place."""
        if not below:
            return
        holder, key = self._last(holder, _key_at(holder, at - 1))
        slots, behind = _slots(holder, key), _BEHIND[type(holder)]
        if slots[behind] is None:
            slots[behind] = _token("" if isinstance(holder[key], _BLOCK_TEXTS) else "\n")
        slots[behind].value += below

    def _take_comments(self, holder: Any, key: Any, removed: RemovedComments) -> None:
        """Collect the comments of an entry and of what is within it."""
        for number, slot in enumerate(holder.ca.items.get(key, ())):
            for token in slot if isinstance(slot, list) else [slot] if slot else []:
                for line, text in enumerate(token.value.splitlines()):
                    if text.strip() and line == 0 and number == 2 and isinstance(key, str):
                        removed.behind.setdefault(key, text)
                    elif text.strip():
                        removed.above.append(text.strip())
        if self._is_written(holder, key):
            for at in range(len(holder[key])):
                self._take_comments(holder[key], _key_at(holder[key], at), removed)


def _indentation(root: YamlNode) -> tuple[int, int, int]:
    """Return how far mappings, and dashes, are behind their key, and items behind their dash."""
    step = dash = None
    offset = 0 if root.kind == "sequence" else None
    for node in root.walk():
        for entry in node.entries:
            value, at = entry.value, entry.key.column
            if node.flow or value.flow or value.line == entry.key.line:
                continue
            if value.kind == "mapping":
                step = step or value.column - at
            elif value.kind == "sequence":
                offset = value.column - at if offset is None else offset
                dash = dash or value.items[0].column - value.column
    return step or 2, 2 if offset is None else offset, dash or 2


def _index(holder: Any, key: Any) -> int:
    return list(holder).index(key) if isinstance(holder, dict) else int(key)


def _key_at(holder: Any, at: int) -> Any:
    return list(holder)[at] if isinstance(holder, dict) else at


def _slots(holder: Any, key: Any) -> Any:
    return holder.ca.items.setdefault(key, [None] * 4)


def _token(text: str) -> CommentToken:
    return CommentToken(text, CommentMark(0))


def _scalar(value: str | int | Quoted) -> str:
    text = value.text if isinstance(value, Quoted) else str(value)
    plain = isinstance(value, int) or (isinstance(value, str) and is_plain(value))
    return text if plain else str.__new__(DoubleQuotedScalarString, text)


# --- what is written into a document, and why one cannot be edited ---

#: The data that is written: a string, a number, a mapping, or a list of these.
Data: TypeAlias = "str | int | Quoted | tuple[NewText, ...] | list[Data]"


class CannotEdit(Exception):  # its caller adds the file and what to do
    """A document that an edit would change in other places, too; the text says why."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.line = line


@dataclass
class NewText:
    """An entry to write: `above` are comments on lines of their own, `behind` one on its line.

    Comments come last, when all that goes is known.
    """

    key: str
    value: Data
    behind: str = ""
    above: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Quoted:
    """A string that is written in quotes, as those beside it are."""

    text: str


@dataclass
class RemovedComments:
    """The comments of entries that go: behind a key's line, and on lines of their own."""

    behind: dict[str, str] = field(default_factory=dict)
    above: list[str] = field(default_factory=list)


@functools.lru_cache(1024)
def is_plain(text: str) -> bool:
    """Whether YAML reads `text` without quotes as this string, in a block and in braces."""
    try:
        return bool(yaml.safe_load(f"{{k: {text}}}") == {"k": text} == yaml.safe_load(f"k: {text}"))
    except yaml.YAMLError:
        return False
