# SPDX-License-Identifier: Apache-2.0
"""What is to change in a document, by the collections in which it does, and the edits for it.

A collection that aliases or merge keys bring to several places is written once. So each of those
places has to wish the same of it; where one does not, the document is refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare.convert import blocks, flows
from gpushare.convert.edits import CannotEdit, Data, Edit, New
from gpushare.convert.lines import line_of
from gpushare.convert.tree import MERGE, Entry, Node, Step, find

Path = tuple[Step, ...]

#: What goes with the last entry or item in it.
PRUNED: Final = frozenset(
    {
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
    }
)


@dataclass
class Wish:
    """What one place wants of a collection: what goes, what comes, and what empty values get."""

    going: list[Entry | Node] = field(default_factory=list)
    new: list[New] = field(default_factory=list)
    items: list[Data] = field(default_factory=list)
    filled: dict[str, list[New]] = field(default_factory=dict)
    filled_lists: dict[str, list[Data]] = field(default_factory=dict)
    after: str | None = None

    def same(self, other: Wish) -> bool:
        """Whether both want the same."""
        mine, others = ({id(part) for part in one.going} for one in (self, other))
        return mine == others and replace(self, going=[]) == replace(other, going=[])


class Plan:
    """The wishes of one document, whose root is `root`, in `text`."""

    def __init__(self, text: str, root: Node) -> None:
        self._text = text
        self._root = root
        self._sites: dict[int, Node] = {}
        self._wishes: dict[int, dict[Path, Wish]] = {}
        self._paths: dict[int, dict[Path, int]] = {}
        self._register(root, ())

    def _register(self, node: Node, path: Path, alias: int | None = None) -> None:
        """Note each place at which a collection is, and the alias that brings it there."""
        if node.kind == "alias" and alias is None:
            alias = node.start
        meant = node.meant
        self._paths.setdefault(id(meant), {})[path] = meant.start if alias is None else alias
        for entry in meant.entries:
            if entry.key.text == MERGE and not entry.key.style:
                value = entry.value.meant
                for merged in [entry.value] if value.kind == "mapping" else value.items:
                    self._register(merged, path, alias)
            elif path or not entry.key.text.startswith("x-"):  # compose: only for aliases
                self._register(entry.value, (*path, entry.key.text), alias)
        for number, item in enumerate(meant.items):
            self._register(item, (*path, number), alias)

    def at(self, path: Path) -> Node:
        """Return the node at `path`; KeyError where there is none."""
        node = find(self._root, path)
        if node is None:
            raise KeyError(path)
        return node

    def at_or_none(self, path: Path) -> Node | None:
        """Return the node at `path`; None where there is none."""
        return find(self._root, path)

    def path_of(self, node: Node) -> Path:
        """Return the first place of a collection."""
        return next(iter(self._paths[id(node)]))

    def wish(self, site: Node, path: Path) -> Wish:
        """Return what `path` wants of `site`, to be added to."""
        self._sites[id(site)] = site
        return self._wishes.setdefault(id(site), {}).setdefault(path, Wish())

    def remove(self, entry: Entry, path: Path) -> None:
        """Take an entry out of the mapping that it is written in; `path` is the mapping's."""
        assert entry.key.parent is not None
        going = self.wish(entry.key.parent, path).going
        if not any(part is entry for part in going):
            going.append(entry)

    def remove_item(self, sequence: Node, number: int, path: Path) -> None:
        """Take an item out of the list at `path`."""
        going = self.wish(sequence, path).going
        if not any(part is sequence.items[number] for part in going):
            going.append(sequence.items[number])

    def add(self, base: Node, path: Path, way: Sequence[str], new: Sequence[New]) -> None:
        """Put entries into the mapping at `way` beneath `base`, and make what is not there."""
        for number, name in enumerate(way):
            child = base.get(name)
            if child is None or (child.empty and child.kind != "sequence"):
                below = _nested(way[number + 1 :], new)
                wish = self.wish(base, path)
                if child is None:
                    _merge(wish.new, New(name, tuple(below)))
                else:
                    wish.filled.setdefault(name, []).extend(below)
                return
            if child.kind != "mapping":
                raise CannotEdit(f"{name} is no mapping; write one", child.start)
            base, path = child, (*path, name)
        self.wish(base, path).new.extend(new)

    def add_items(self, base: Node, path: Path, name: str, new: Sequence[Data]) -> None:
        """Put items into the list `name` of `base`."""
        child = base.get(name)
        if child is None:
            self.wish(base, path).new.append(New(name, list(new)))
        elif child.empty:
            self.wish(base, path).filled_lists.setdefault(name, []).extend(new)
        elif child.kind != "sequence":
            raise CannotEdit(f"{name} is no list; write one", child.start)
        else:
            self.wish(child, (*path, name)).items.extend(new)

    # --- the edits ---

    def edits(self) -> list[Edit]:
        """Return the edits; CannotEdit where places that share a collection differ."""
        self.prune()
        self._agree()
        gone = [part for wish in self._each() for part in wish.going]
        self._refuse_lost_anchors(gone)
        found: list[Edit] = []
        for key, wishes in self._wishes.items():
            site = self._sites[key]
            if not _within(site, gone):
                depth = _depth(site)
                edits = self._change(site, next(iter(wishes.values())))
                found += [replace(edit, depth=depth) for edit in edits]
        return found

    def _each(self) -> Iterator[Wish]:
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

    def _owner(self, site: Node, names: Container[str]) -> list[Node]:
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

    def _merges(self, site: Node) -> list[Node]:
        """Take out what merges an anchored mapping with nothing left in it, and the mapping."""
        if self._paths[id(site)].keys() - self._wishes[id(site)].keys():
            return []
        aliases = [node for node in self._root.walk() if node.target is site]
        merges = [
            (alias.parent, entry)
            for alias in aliases
            if alias.parent is not None
            for entry in alias.parent.entries
            if entry.value is alias and entry.key.text == MERGE
        ]
        if len(merges) < len(aliases):
            return []
        for mapping, entry in merges:
            for path in self._paths[id(mapping)]:
                self.remove(entry, path)
        return [mapping for mapping, _ in merges] + self._owner(site, PRUNED)

    @staticmethod
    def _emptied(site: Node, wish: Wish) -> bool:
        return (
            bool(wish.going)
            and len(wish.going) == len(site.entries or site.items)
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
                f"what is written here is shared by an alias (line {line}), and would have to "
                "change in one place only; write it out there",
                site.start,
            )

    def _refuse_lost_anchors(self, gone: Sequence[Entry | Node]) -> None:
        """Refuse where an alias would be left of what goes."""
        spans = [(part.start, part.end) for part in gone]
        for node in self._root.walk():
            target = node.target
            if target is None or any(start <= node.start < end for start, end in spans):
                continue
            if any(start <= target.start < end for start, end in spans):
                line = line_of(self._text, node.start)
                why = f"&{target.anchor} would go, and line {line} needs it; write it out there"
                raise CannotEdit(why, target.start)

    def gone(self) -> Iterator[tuple[Node, Path, blocks.Gone]]:
        """Yield the comments of what goes, with where it was."""
        parts = [part for wish in self._each() for part in wish.going]
        for key, wishes in self._wishes.items():
            site = self._sites[key]
            for path, wish in wishes.items():
                if site.flow or _within(site, parts):
                    continue
                entries = [part for part in wish.going if isinstance(part, Entry)]
                moved = not wish.new
                if entries:
                    yield site, path, blocks.gone(self._text, site, entries, all_of_it=moved)
                items = [part for part in wish.going if isinstance(part, Node)]
                if items:
                    moved = not wish.items
                    yield site, path, blocks.gone_items(self._text, site, items, all_of_it=moved)

    def _change(self, site: Node, wish: Wish) -> list[Edit]:
        text = self._text
        edits: list[Edit] = []
        for name, new in wish.filled.items():
            edits += self._fill(site, name, new, [])
        for name, values in wish.filled_lists.items():
            edits += self._fill(site, name, [], values)
        if site.kind == "sequence":
            items = [part for part in wish.going if isinstance(part, Node)]
            change = flows.change_list if site.flow else blocks.change_list
            return edits + self._kept(site, wish, change(text, site, items, wish.items))
        going = [part for part in wish.going if isinstance(part, Entry)]
        if site.flow:
            return edits + flows.change_mapping(text, site, going, wish.new)
        if not (going or wish.new):
            return edits
        changed = blocks.change_mapping(text, site, going, wish.new, after=wish.after)
        return edits + self._kept(site, wish, changed)

    def _kept(self, site: Node, wish: Wish, edits: list[Edit]) -> list[Edit]:
        """Return what leaves `{}` of a block of which an alias is; else `edits`."""
        if not site.anchor or not self._emptied(site, wish):
            return edits
        begin = self._text.index(f"&{site.anchor}", site.start) + len(site.anchor) + 1
        return [Edit(begin, site.end, " {}" if site.kind == "mapping" else " []")]

    def _fill(self, site: Node, name: str, new: list[New], values: list[Data]) -> list[Edit]:
        entry = site.entry(name)
        if entry is None or entry.value.kind == "alias" or entry.value.anchor:
            raise CannotEdit(f"{name} is empty, and shared by an alias; write it out", site.start)
        text = self._text
        if not site.flow:
            return blocks.fill(text, entry, new) if new else blocks.fill_list(text, entry, values)
        if entry.value.kind == "scalar":
            raise CannotEdit(f"{name} has no value; write {{}} or leave it out", entry.start)
        if new:
            return flows.change_mapping(text, replace(entry.value, kind="mapping"), [], new)
        return flows.change_list(text, replace(entry.value, kind="sequence"), [], values)


def _within(node: Node, gone: Sequence[Entry | Node]) -> bool:
    """Whether a collection is of what goes as a whole."""
    parts = {id(part.value if isinstance(part, Entry) else part) for part in gone}
    here: Node | None = node
    while here is not None and id(here) not in parts:
        here = here.parent
    return here is not None


def _nested(way: Sequence[str], new: Sequence[New]) -> list[New]:
    if not way:
        return list(new)
    return [New(way[0], tuple(_nested(way[1:], new)))]


def _merge(into: list[New], new: New) -> None:
    """Put a mapping beside others that are new, or into the one of its name."""
    for number, one in enumerate(into):
        if one.key == new.key and isinstance(one.value, tuple) and isinstance(new.value, tuple):
            inner = list(one.value)
            for entry in new.value:
                _merge(inner, entry)
            into[number] = replace(one, value=tuple(inner))
            return
    into.append(new)


def _depth(node: Node) -> int:
    depth = 0
    while node.parent is not None:
        node, depth = node.parent, depth + 1
    return depth
