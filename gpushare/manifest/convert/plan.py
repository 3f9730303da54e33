# SPDX-License-Identifier: Apache-2.0
"""What is to change in a document, by the collections in which it does, and the edits for it.

A collection that aliases or merge keys bring to several places is written once. So each of those
places has to wish the same of it; where one does not, the document is refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare.manifest.convert.collection_edits import (
    RemovedComments,
    change_block_list,
    change_block_mapping,
    change_flow_list,
    change_flow_mapping,
    comments_of_entries,
    comments_of_items,
    fill,
    fill_list,
)
from gpushare.manifest.convert.edits import CannotEdit, Data, Edit, NewText, line_of
from gpushare.text_position import KeyPath
from gpushare.yaml_nodes import MappingEntry, YamlNode, find

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


@dataclass
class CollectionEdit:
    """What one place wants of a collection: what goes, what comes, and what empty values get."""

    removed: list[MappingEntry | YamlNode] = field(default_factory=list)
    new: list[NewText] = field(default_factory=list)
    items: list[Data] = field(default_factory=list)
    filled: dict[str, list[NewText]] = field(default_factory=dict)
    filled_lists: dict[str, list[Data]] = field(default_factory=dict)
    after: str | None = None

    @property
    def removed_entries(self) -> list[MappingEntry]:
        """The entries of a mapping that are removed."""
        return [part for part in self.removed if isinstance(part, MappingEntry)]

    @property
    def removed_items(self) -> list[YamlNode]:
        """The items of a list that are removed."""
        return [part for part in self.removed if isinstance(part, YamlNode)]

    def same(self, other: CollectionEdit) -> bool:
        """Whether both want the same."""
        mine, others = ({id(part) for part in one.removed} for one in (self, other))
        return mine == others and replace(self, removed=[]) == replace(other, removed=[])


class DocumentEdits:
    """The wishes of one document, whose root is `root`, in `text`."""

    def __init__(self, text: str, root: YamlNode) -> None:
        self._text = text
        self._root = root
        self._sites: dict[int, YamlNode] = {}
        self._wishes: dict[int, dict[KeyPath, CollectionEdit]] = {}
        self._paths: dict[int, dict[KeyPath, int]] = {}
        self._register(root, ())

    def _register(self, node: YamlNode, path: KeyPath, alias: int | None = None) -> None:
        """Note each place at which a collection is, and the alias that brings it there."""
        if node.kind == "alias" and alias is None:
            alias = node.start
        meant = node.resolved
        self._paths.setdefault(id(meant), {})[path] = meant.start if alias is None else alias
        for entry in meant.entries:
            if entry.is_merge:
                value = entry.value.resolved
                for merged in [entry.value] if value.kind == "mapping" else value.items:
                    self._register(merged, path, alias)
            elif path or not entry.key.text.startswith("x-"):  # compose: only for aliases
                self._register(entry.value, (*path, entry.key.text), alias)
        for number, item in enumerate(meant.items):
            self._register(item, (*path, number), alias)

    def at(self, path: KeyPath) -> YamlNode:
        """Return the node at `path`; KeyError where there is none."""
        node = find(self._root, path)
        if node is None:
            raise KeyError(path)
        return node

    def path_of(self, node: YamlNode) -> KeyPath:
        """Return the first place of a collection."""
        return next(iter(self._paths[id(node)]))

    def wish(self, site: YamlNode, path: KeyPath) -> CollectionEdit:
        """Return what `path` wants of `site`, to be added to."""
        self._sites[id(site)] = site
        return self._wishes.setdefault(id(site), {}).setdefault(path, CollectionEdit())

    def remove(self, entry: MappingEntry, path: KeyPath) -> None:
        """Take an entry out of the mapping that it is written in; `path` is the mapping's."""
        assert entry.key.parent is not None
        removed = self.wish(entry.key.parent, path).removed
        if not any(part is entry for part in removed):
            removed.append(entry)

    def remove_item(self, sequence: YamlNode, number: int, path: KeyPath) -> None:
        """Take an item out of the list at `path`."""
        removed = self.wish(sequence, path).removed
        if not any(part is sequence.items[number] for part in removed):
            removed.append(sequence.items[number])

    def add(
        self, base: YamlNode, path: KeyPath, way: Sequence[str], new: Sequence[NewText]
    ) -> None:
        """Put entries into the mapping at `way` beneath `base`, and make what is not there."""
        for number, name in enumerate(way):
            child = base.get(name)
            if child is None or (child.is_empty and child.kind != "sequence"):
                below = _nested(way[number + 1 :], new)
                wish = self.wish(base, path)
                if child is None:
                    _merge(wish.new, NewText(name, tuple(below)))
                else:
                    wish.filled.setdefault(name, []).extend(below)
                return
            if child.kind != "mapping":
                raise CannotEdit(f"{name} is not a mapping; write one", child.start)
            base, path = child, (*path, name)
        self.wish(base, path).new.extend(new)

    def add_items(self, base: YamlNode, path: KeyPath, name: str, new: Sequence[Data]) -> None:
        """Put items into the list `name` of `base`."""
        child = base.get(name)
        if child is None:
            self.wish(base, path).new.append(NewText(name, list(new)))
        elif child.is_empty:
            self.wish(base, path).filled_lists.setdefault(name, []).extend(new)
        elif child.kind != "sequence":
            raise CannotEdit(f"{name} is not a list; write one", child.start)
        else:
            self.wish(child, (*path, name)).items.extend(new)

    # --- the edits ---

    def edits(self) -> list[Edit]:
        """Return the edits; CannotEdit where places that share a collection differ."""
        self.prune()
        self._agree()
        gone = [part for wish in self._each() for part in wish.removed]
        self._refuse_lost_anchors(gone)
        found: list[Edit] = []
        for key, wishes in self._wishes.items():
            site = self._sites[key]
            if not _is_within(site, gone):
                depth = _depth(site)
                edits = self._change(site, next(iter(wishes.values())))
                found += [replace(edit, depth=depth) for edit in edits]
        return found

    def _each(self) -> Iterator[CollectionEdit]:
        for wishes in self._wishes.values():
            yield from wishes.values()

    def prune(self) -> None:
        """Let a collection go that has nothing left in it."""
        waiting = list(self._sites.values())
        while waiting:
            site = waiting.pop()
            wishes = self._wishes[id(site)]
            if all(self._emptied(site, wish) for wish in wishes.values()):
                waiting += self._merges(site) if site.anchor else self._owner(site, PRUNED)

    def _owner(self, site: YamlNode, names: Container[str]) -> list[YamlNode]:
        """Take what is empty out of the mapping that it is in, if `names` has its key."""
        parent = site.parent
        if parent is None or parent.kind != "mapping":
            return []
        entry = next(one for one in parent.entries if one.value is site)
        key = entry.key.text
        if key not in names and (parent.parent is not None or not key.startswith("x-")):
            return []
        for path in self._paths[id(parent)]:
            self.remove(entry, path)
        return [parent]

    def _merges(self, site: YamlNode) -> list[YamlNode]:
        """Take out what merges an anchored mapping with nothing left in it, and the mapping."""
        if self._paths[id(site)].keys() - self._wishes[id(site)].keys():
            return []
        aliases = [node for node in self._root.walk() if node.target is site]
        merges = [
            (alias.parent, entry)
            for alias in aliases
            if alias.parent is not None
            for entry in alias.parent.entries
            if entry.value is alias and entry.is_merge
        ]
        if len(merges) < len(aliases):
            return []
        for mapping, entry in merges:
            for path in self._paths[id(mapping)]:
                self.remove(entry, path)
        return [mapping for mapping, _ in merges] + self._owner(site, PRUNED)

    @staticmethod
    def _emptied(site: YamlNode, wish: CollectionEdit) -> bool:
        return (
            bool(wish.removed)
            and len(wish.removed) == len(site.entries or site.items)
            and not (wish.new or wish.items)
        )

    def _agree(self) -> None:
        for key, wishes in self._wishes.items():
            first = next(iter(wishes.values()))
            differs = next((one for one in wishes.values() if not one.same(first)), None)
            others = self._paths.get(key, {}).keys() - wishes.keys()
            if differs is None and not others:
                continue
            site = self._sites[key]
            path = next(iter(others), None)
            line = line_of(self._text, site.start if path is None else self._paths[key][path])
            raise CannotEdit(
                f"this text is shared by an alias (line {line}), and would have to "
                "change in one place only; write it out there",
                site.start,
            )

    def _refuse_lost_anchors(self, gone: Sequence[MappingEntry | YamlNode]) -> None:
        """Refuse where an alias would be left of what goes."""
        spans = [(part.start, part.end) for part in gone]
        for node in self._root.walk():
            target = node.target
            if target is None or any(start <= node.start < end for start, end in spans):
                continue
            if any(start <= target.start < end for start, end in spans):
                line = line_of(self._text, node.start)
                why = (
                    f"&{target.anchor} would be removed, and line {line} needs it; write it "
                    "out there"
                )
                raise CannotEdit(why, target.start)

    def gone(self) -> Iterator[tuple[KeyPath, RemovedComments]]:
        """Yield the comments of what is removed, with its path."""
        parts = [part for wish in self._each() for part in wish.removed]
        for key, wishes in self._wishes.items():
            site = self._sites[key]
            if site.flow or _is_within(site, parts):
                continue
            for path, wish in wishes.items():
                if entries := wish.removed_entries:
                    yield (
                        path,
                        comments_of_entries(self._text, site, entries, all_of_it=not wish.new),
                    )
                if items := wish.removed_items:
                    yield path, comments_of_items(self._text, site, items, all_of_it=not wish.items)

    def _change(self, site: YamlNode, wish: CollectionEdit) -> list[Edit]:
        text = self._text
        edits: list[Edit] = []
        for name, new in wish.filled.items():
            edits += self._fill(site, name, new, [])
        for name, values in wish.filled_lists.items():
            edits += self._fill(site, name, [], values)
        if site.kind == "sequence":
            change = change_flow_list if site.flow else change_block_list
            changed = change(text, site, wish.removed_items, wish.items)
            return edits + self._kept(site, wish, changed)
        removed = wish.removed_entries
        if site.flow:
            return edits + change_flow_mapping(text, site, removed, wish.new)
        if not (removed or wish.new):
            return edits
        changed = change_block_mapping(text, site, removed, wish.new, after=wish.after)
        return edits + self._kept(site, wish, changed)

    def _kept(self, site: YamlNode, wish: CollectionEdit, edits: list[Edit]) -> list[Edit]:
        """Return what leaves `{}` of a block of which an alias is; else `edits`."""
        if not site.anchor or not self._emptied(site, wish):
            return edits
        begin = self._text.index(f"&{site.anchor}", site.start) + len(site.anchor) + 1
        return [Edit(begin, site.end, " {}" if site.kind == "mapping" else " []")]

    def _fill(
        self, site: YamlNode, name: str, new: list[NewText], values: list[Data]
    ) -> list[Edit]:
        entry = site.entry(name)
        if entry is None or entry.value.kind == "alias" or entry.value.anchor:
            raise CannotEdit(f"{name} is empty and shared by an alias; write it out", site.start)
        text = self._text
        if not site.flow:
            return fill(text, entry, new) if new else fill_list(text, entry, values)
        if entry.value.kind == "scalar":
            raise CannotEdit(f"{name} has no value; use {{}}, or remove the key", entry.start)
        if new:
            return change_flow_mapping(text, replace(entry.value, kind="mapping"), [], new)
        return change_flow_list(text, replace(entry.value, kind="sequence"), [], values)


def _is_within(node: YamlNode, gone: Sequence[MappingEntry | YamlNode]) -> bool:
    """Whether a collection is of what goes as a whole."""
    parts = {id(part.value if isinstance(part, MappingEntry) else part) for part in gone}
    here: YamlNode | None = node
    while here is not None and id(here) not in parts:
        here = here.parent
    return here is not None


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


def _depth(node: YamlNode) -> int:
    depth = 0
    while node.parent is not None:
        node, depth = node.parent, depth + 1
    return depth
