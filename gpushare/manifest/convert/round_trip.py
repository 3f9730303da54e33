# SPDX-License-Identifier: Apache-2.0
"""A YAML document as ruamel.yaml's tree: comments, quotes and indentation come back as they were.

ruamel.yaml reads YAML 1.2, and manifests are YAML 1.1 (`010`, `yes`). So each scalar is a text
here, and `<<` is a key as any other: the tree is what is written. ruamel.yaml attaches the comments
and empty lines beneath an entry to the last line of the entry: `_cut` takes them off, before the
entry goes or another comes behind it, and `_paste` attaches them to what stands there then.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

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

from gpushare.manifest.convert.edits import (
    CannotEdit,
    Data,
    NewText,
    Quoted,
    RemovedComments,
    is_plain,
)
from gpushare.yaml_nodes import YamlNode

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
        found = self._root
        for step in node.path:
            found = found[step]
        return found

    def _place(self, node: YamlNode) -> tuple[Any, Any]:
        """Return the collection that an item, a key or its value is in, and its place there."""
        assert node.parent is not None
        return self._at(node.parent), node.path[-1]

    def remove(self, parts: Sequence[YamlNode], *, replaced: bool) -> RemovedComments:
        """Remove items, or the entries of keys, from their collection; return their comments.

        `replaced`: something is inserted where the first of them is.
        """
        found = RemovedComments()
        parts = sorted(parts, key=attrgetter("start"))
        for part in reversed(parts):
            holder, key = self._place(part)
            at = _index(holder, key)
            below = self._cut(holder, key)
            self._take_comments(holder, key, found)
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
                    found.above[:0] = [line.strip() for line in lines[blank:]]
                    below = "".join(lines[:blank]) + below
                self._paste(holder, at, below)
            elif not holder and part.parent and part.parent.parent:
                outer, name = self._place(part.parent)
                self._paste(outer, _index(outer, name) + 1, below)
            else:
                found.above += [line.strip() for line in below.splitlines() if line.strip()]
        return found

    def insert(
        self, site: YamlNode, new: Sequence[NewText] | Sequence[Data], after: str | None
    ) -> None:
        """Put entries or items where others were removed, or behind `after`, or the last one.

        An entry that is there gets the new value.
        """
        holder, column = self._at(site), self._column(site)
        fresh = []
        for one in new:
            if isinstance(one, NewText) and one.key in holder:
                below = self._cut(holder, one.key)
                holder[one.key] = self._built(one.value, column + self._step)
                self._paste(holder, _index(holder, one.key) + 1, below)
            else:
                fresh.append(one)
        at = _index(holder, after) + 1 if after in holder else 0 if after == "" else len(holder)
        if id(holder) in self._places:
            at, below = self._places[id(holder)]
        else:
            below = self._cut(holder, _key_at(holder, at - 1)) if at else ""
        for number, one in enumerate(fresh, at):
            self._put(holder, number, one, column)
        self._paste(holder, at + len(fresh), below)

    def _put(self, holder: Any, at: int, one: NewText | Data, column: int) -> None:
        """Put an entry or an item with its comments at a place; lines begin at `column`."""
        above: list[str] = []
        key: Any = at
        if isinstance(one, NewText):
            above, key = one.above, _scalar(one.key)
            within = self._offset if isinstance(one.value, list) else self._step
            holder.insert(at, key, self._built(one.value, column + within))
        else:
            if isinstance(one, tuple):
                above, one = one[0].above, (replace(one[0], above=[]), *one[1:])
            holder.insert(at, self._built(one, column + self._dash))
        if holder.fa.flow_style():
            return
        if above:
            text = "".join(" " * column + comment + "\n" for comment in above)
            _slots(holder, key)[_ABOVE] = [_token(text)]
        if isinstance(one, NewText) and one.behind:
            _slots(holder, key)[_BEHIND[type(holder)]] = _token(f" {one.behind}\n")

    def _built(self, value: Data, column: int) -> Any:
        """Return a value for a tree; the lines of a collection begin at `column`."""
        if not isinstance(value, (tuple, list)):
            return _scalar(value)
        made = CommentedMap() if isinstance(value, tuple) else CommentedSeq()
        for number, one in enumerate(value):
            self._put(made, number, one, column)
        return made

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

    def _take_comments(self, holder: Any, key: Any, found: RemovedComments) -> None:
        """Collect the comments of an entry and of what is within it."""
        for number, slot in enumerate(holder.ca.items.get(key, ())):
            for token in slot if isinstance(slot, list) else [slot] if slot else []:
                for line, text in enumerate(token.value.splitlines()):
                    if text.strip() and line == 0 and number == 2 and isinstance(key, str):
                        found.behind.setdefault(key, text)
                    elif text.strip():
                        found.above.append(text.strip())
        if self._is_written(holder, key):
            for at in range(len(holder[key])):
                self._take_comments(holder[key], _key_at(holder[key], at), found)


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
