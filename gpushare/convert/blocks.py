# SPDX-License-Identifier: Apache-2.0
"""Mappings and lists in block style: entries and items that go, and new ones in their lines.

What is new takes the lines of the first that goes, else it comes behind `after` or the last. Of
what goes the caller gets the comments first (`Gone`), to write them with what takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeVar

from gpushare.convert.edits import STEP, CannotEdit, Data, Edit, New, block, items
from gpushare.convert.lines import (
    begins_line,
    column,
    comment_behind,
    comments_above,
    comments_between,
    line_break,
    line_end,
    line_start,
    next_line,
    skip,
)
from gpushare.convert.tree import Entry, Node

_COMMENT: Final = re.compile(r"(?:(?<=\s)|^)#[^\r\n]*", re.MULTILINE)

Part = TypeVar("Part", Entry, Node)


@dataclass
class Gone:
    """The comments of entries that go: behind a key's line, and on lines of their own."""

    behind: dict[str, str] = field(default_factory=dict)
    above: list[str] = field(default_factory=list)


def gone(text: str, mapping: Node, going: Sequence[Entry], *, all_of_it: bool) -> Gone:
    """Return the comments that go with `going`.

    A comment right above goes with the last entries of a mapping; above others it may be about all
    that follow, and stays. `all_of_it`: nothing takes the place of `going` in this mapping.
    """
    found = Gone()
    for run in runs(mapping.entries, going):
        if all_of_it and run[-1] is mapping.entries[-1]:
            found.above += comments_above(text, run[0].start)[1]
        for entry in run:
            _take(text, entry, found)
        for one, other in pairwise(run):
            found.above += comments_between(text, one.end, other.start)
    return found


def gone_items(text: str, sequence: Node, going: Sequence[Node], *, all_of_it: bool) -> Gone:
    """Return the comments that go with items of a list, by the same rule."""
    found = Gone()
    dashes = _dashes(text, sequence)
    for run in runs(sequence.items, going):
        if all_of_it and run[-1] is sequence.items[-1]:
            found.above += comments_above(text, dashes[sequence.items.index(run[0])])[1]
        for item in run:
            _take_within(text, item, item.start, found)
            if comment := comment_behind(text, item.end):
                found.above.append(comment)
        for one, other in pairwise(run):
            found.above += comments_between(text, one.end, other.start)
    return found


def _take(text: str, entry: Entry, found: Gone) -> None:
    _take_within(text, entry.value, entry.key.end, found)
    if comment := comment_behind(text, entry.end):
        while entry.value.entries and not entry.value.flow:
            entry = entry.value.entries[-1]  # it stands behind the last of what is within
        found.behind.setdefault(entry.key.text, comment)


def _take_within(text: str, node: Node, at: int, found: Gone) -> None:
    """Take the comments from `at` to the last letter of `node`."""
    behind = {
        entry.end: entry.key.text
        for inner in node.walk()
        for entry in inner.entries
        if entry.value.kind == "scalar"
    }
    for leaf in node.walk():
        if leaf.kind not in {"scalar", "alias"} or leaf.start < at:
            continue
        for match in _COMMENT.finditer(text[at : leaf.start]):
            if at in behind and "\n" not in text[at : at + match.start()]:
                found.behind.setdefault(behind[at], match.group())
            else:
                found.above.append(match.group())
        at = leaf.end


def change_mapping(
    text: str,
    mapping: Node,
    going: Sequence[Entry],
    new: Sequence[New],
    *,
    after: str | None = None,
) -> list[Edit]:
    """Return the edits by which `going` leave a block mapping, and `new` come into it."""
    indent = column(text, mapping.entries[0].start)
    lines = block(new, indent, _dash(text, mapping))
    edits: list[Edit] = []
    for run in runs(mapping.entries, going):
        edits.append(_run_of_entries(text, mapping, run, lines, moved=not new))
        lines = []
    if lines:
        edits.append(_behind(text, mapping, lines, after))
    return edits


def _run_of_entries(
    text: str, mapping: Node, run: Sequence[Entry], lines: list[str], *, moved: bool
) -> Edit:
    first, last = run[0], run[-1]
    broken = line_break(text)
    if begins_line(text, first.start):
        start = line_start(text, first.start)
        if moved and last is mapping.entries[-1]:
            start = comments_above(text, first.start)[0]
        return Edit(start, next_line(text, last.end), "".join(line + broken for line in lines))
    # `- name: x`: the first key stands behind the dash of its item.
    if lines:
        stripped = [lines[0].lstrip(" "), *lines[1:]]
        return Edit(first.start, line_end(text, last.end), broken.join(stripped))
    position = mapping.entries.index(last) + 1
    if position == len(mapping.entries):
        raise CannotEdit("nothing would be left of this item", first.start)
    return Edit(first.start, mapping.entries[position].start, "")


def _behind(text: str, mapping: Node, lines: list[str], after: str | None) -> Edit:
    broken = line_break(text)
    if after == "":  # before all of them
        at = mapping.entries[0].start
        head = [lines[0].lstrip(" "), *lines[1:]]
        return Edit(at, at, broken.join(head) + broken + " " * column(text, at))
    found = None if after is None else mapping.entry(after)
    return _insert(text, (found or mapping.entries[-1]).end, lines)


def _insert(text: str, end: int, lines: list[str]) -> Edit:
    """Return the edit that puts `lines` beneath the line of `end`."""
    at = next_line(text, end)
    return Edit(at, at, "".join(line + line_break(text) for line in lines))


def fill(text: str, entry: Entry, new: Sequence[New]) -> list[Edit]:
    """Return the edits by which `key:` without a value, or with `{}`, gets a block mapping."""
    return _fill(text, entry, block(new, column(text, entry.start) + STEP))


def fill_list(text: str, entry: Entry, values: Sequence[Data]) -> list[Edit]:
    """Return the same for a list."""
    return _fill(text, entry, items(values, column(text, entry.start) + STEP))


def _fill(text: str, entry: Entry, lines: list[str]) -> list[Edit]:
    colon = text.index(":", entry.key.end) + 1
    new = _insert(text, entry.end, lines)
    return [new] if entry.end <= colon else [Edit(colon, entry.end, ""), new]


def change_list(
    text: str, sequence: Node, going: Sequence[Node], new: Sequence[Data]
) -> list[Edit]:
    """Return the edits by which items leave a block list, and others come into it."""
    dashes = _dashes(text, sequence)
    lines = items(new, column(text, dashes[0]))
    broken = line_break(text)
    edits: list[Edit] = []
    for run in runs(sequence.items, going):
        dash = dashes[sequence.items.index(run[0])]
        if not begins_line(text, dash):
            raise CannotEdit("a list within a list begins on this line", dash)
        start, end = line_start(text, dash), next_line(text, run[-1].end)
        if not new and run[-1] is sequence.items[-1]:
            start = comments_above(text, dash)[0]
        edits.append(Edit(start, end, "".join(line + broken for line in lines)))
        lines = []
    if lines:
        edits.append(_insert(text, sequence.items[-1].end, lines))
    return edits


def _dashes(text: str, sequence: Node) -> list[int]:
    found, at = [], sequence.start
    if sequence.anchor:
        at = text.index(sequence.anchor, at) + len(sequence.anchor)
    for item in sequence.items:
        found.append(skip(text, at))
        at = max(item.end, found[-1] + 1)
    return found


def _dash(text: str, mapping: Node) -> int:
    """Return how far dashes stand behind their key here, as the nearest list around shows."""
    node: Node | None = mapping
    while node is not None and node.parent is not None:
        owner = node.parent
        if node.kind == "sequence" and not node.flow and owner.kind == "mapping":
            entry = next(e for e in owner.entries if e.value is node)
            return max(0, column(text, _dashes(text, node)[0]) - column(text, entry.start))
        node = owner
    return STEP


def runs(parts: Sequence[Part], going: Sequence[Part]) -> list[list[Part]]:
    """Return `going` by what stands together in `parts`."""
    runs: list[list[Part]] = []
    before = False
    for part in parts:
        goes = any(part is one for one in going)
        if goes and before:
            runs[-1].append(part)
        elif goes:
            runs.append([part])
        before = goes
    return runs
