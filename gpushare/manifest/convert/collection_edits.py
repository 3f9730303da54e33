# SPDX-License-Identifier: Apache-2.0
"""Edits of a mapping or list: remove some of its entries or items, and insert new ones.

In block style, new lines take the place of the first that is removed, or follow `after` or the last
one. In flow style (JSON, for example) only the text between two parts changes, so a part may change
within at the same time; comments between them stay. The caller gets the comments of removed lines
(`RemovedComments`), to write them with the new text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeVar

from gpushare.manifest.convert.edits import (
    INDENT,
    CannotEdit,
    Data,
    Edit,
    NewText,
    begins_line,
    block_lines,
    column,
    comment_behind,
    comments_above,
    comments_between,
    flow_entry,
    flow_text,
    item_lines,
    line_break,
    line_end,
    line_start,
    next_line,
    skip_space,
)
from gpushare.yaml_nodes import MappingEntry, YamlNode

_COMMENT: Final = re.compile(r"(?:(?<=\s)|^)#[^\r\n]*", re.MULTILINE)

Item = TypeVar("Item", MappingEntry, YamlNode)


_QUOTE: Final = '"'


@dataclass
class RemovedComments:
    """The comments of entries that go: behind a key's line, and on lines of their own."""

    behind: dict[str, str] = field(default_factory=dict)
    above: list[str] = field(default_factory=list)


def comments_of_entries(
    text: str, mapping: YamlNode, going: Sequence[MappingEntry], *, all_of_it: bool
) -> RemovedComments:
    """Return the comments that go with `going`.

    A comment right above goes with the last entries of a mapping; above others it may be about all
    that follow, and stays. `all_of_it`: nothing takes the place of `going` in this mapping.
    """
    found = RemovedComments()
    for run in runs(mapping.entries, going):
        if all_of_it and run[-1] is mapping.entries[-1]:
            found.above += comments_above(text, run[0].start)[1]
        for entry in run:
            _take_entry(text, entry, found)
        for one, other in pairwise(run):
            found.above += comments_between(text, one.end, other.start)
    return found


def comments_of_items(
    text: str, sequence: YamlNode, going: Sequence[YamlNode], *, all_of_it: bool
) -> RemovedComments:
    """Return the comments that go with items of a list, by the same rule."""
    found = RemovedComments()
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


def _take_entry(text: str, entry: MappingEntry, found: RemovedComments) -> None:
    _take_within(text, entry.value, entry.key.end, found)
    if comment := comment_behind(text, entry.end):
        while entry.value.entries and not entry.value.flow:
            entry = entry.value.entries[-1]  # it stands behind the last of what is within
        found.behind.setdefault(entry.key.text, comment)


def _take_within(text: str, node: YamlNode, at: int, found: RemovedComments) -> None:
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


def change_block_mapping(
    text: str,
    mapping: YamlNode,
    going: Sequence[MappingEntry],
    new: Sequence[NewText],
    *,
    after: str | None = None,
) -> list[Edit]:
    """Return the edits by which `going` leave a block mapping, and `new` come into it."""
    indent = column(text, mapping.entries[0].start)
    lines = block_lines(new, indent, _dash(text, mapping))
    edits: list[Edit] = []
    for run in runs(mapping.entries, going):
        edits.append(_run_of_entries(text, mapping, run, lines, moved=not new))
        lines = []
    if lines:
        edits.append(_insert_behind(text, mapping, lines, after))
    return edits


def _run_of_entries(
    text: str, mapping: YamlNode, run: Sequence[MappingEntry], lines: list[str], *, moved: bool
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
        raise CannotEdit("nothing of this item would remain", first.start)
    return Edit(first.start, mapping.entries[position].start, "")


def _insert_behind(text: str, mapping: YamlNode, lines: list[str], after: str | None) -> Edit:
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


def fill(text: str, entry: MappingEntry, new: Sequence[NewText]) -> list[Edit]:
    """Return the edits by which `key:` without a value, or with `{}`, gets a block mapping."""
    return _fill(text, entry, block_lines(new, column(text, entry.start) + INDENT))


def fill_list(text: str, entry: MappingEntry, values: Sequence[Data]) -> list[Edit]:
    """Return the same for a list."""
    return _fill(text, entry, item_lines(values, column(text, entry.start) + INDENT))


def _fill(text: str, entry: MappingEntry, lines: list[str]) -> list[Edit]:
    colon = text.index(":", entry.key.end) + 1
    new = _insert(text, entry.end, lines)
    return [new] if entry.end <= colon else [Edit(colon, entry.end, ""), new]


def change_block_list(
    text: str, sequence: YamlNode, going: Sequence[YamlNode], new: Sequence[Data]
) -> list[Edit]:
    """Return the edits by which items leave a block list, and others come into it."""
    dashes = _dashes(text, sequence)
    lines = item_lines(new, column(text, dashes[0]))
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


def _dashes(text: str, sequence: YamlNode) -> list[int]:
    found, at = [], sequence.start
    if sequence.anchor:
        at = text.index(sequence.anchor, at) + len(sequence.anchor)
    for item in sequence.items:
        found.append(skip_space(text, at))
        at = max(item.end, found[-1] + 1)
    return found


def _dash(text: str, mapping: YamlNode) -> int:
    """Return how far dashes stand behind their key here, as the nearest list around shows."""
    node: YamlNode | None = mapping
    while node is not None and node.parent is not None:
        owner = node.parent
        if node.kind == "sequence" and not node.flow and owner.kind == "mapping":
            entry = next(e for e in owner.entries if e.value is node)
            return max(0, column(text, _dashes(text, node)[0]) - column(text, entry.start))
        node = owner
    return INDENT


def runs(parts: Sequence[Item], going: Sequence[Item]) -> list[list[Item]]:
    """Return `going` by what stands together in `parts`."""
    runs: list[list[Item]] = []
    before = False
    for part in parts:
        goes = any(part is one for one in going)
        if goes and before:
            runs[-1].append(part)
        elif goes:
            runs.append([part])
        before = goes
    return runs


def change_flow_mapping(
    text: str, mapping: YamlNode, going: Sequence[MappingEntry], new: Sequence[NewText]
) -> list[Edit]:
    """Return the edits by which `going` leave a mapping in braces, and `new` come into it."""
    quoted = _quoted(mapping)
    return _change(
        text, mapping, mapping.entries, going, [flow_entry(n, quoted=quoted) for n in new]
    )


def change_flow_list(
    text: str, sequence: YamlNode, going: Sequence[YamlNode], new: Sequence[Data]
) -> list[Edit]:
    """Return the edits by which items leave a list in brackets, and others come into it."""
    quoted = _quoted(sequence)
    written = [flow_text(one, quoted=quoted) for one in new]
    return _change(text, sequence, sequence.items, going, written)


def _quoted(node: YamlNode) -> bool:
    """Whether keys are quoted here, as JSON's are: the nearest mapping that has any tells."""
    here: YamlNode | None = node
    while here is not None:
        if here.entries and here.flow:
            return here.entries[0].key.style == _QUOTE
        here = here.parent
    return False


def _change(
    text: str,
    node: YamlNode,
    parts: Sequence[Item],
    going: Sequence[Item],
    new: list[str],
) -> list[Edit]:
    begin, end = text.index("{" if node.kind == "mapping" else "[", node.start) + 1, node.end - 1
    starts, ends = [*(p.start for p in parts), end], [begin, *(p.end for p in parts)]
    gaps = [text[e:s] for e, s in zip(ends, starts, strict=True)]
    between = _between(gaps)
    edits: list[Edit] = []
    for run in runs(parts, going):
        first = next(number for number, part in enumerate(parts) if part is run[0])
        last = first + len(run)
        middle = "".join(_kept_comments(gap) for gap in gaps[first + 1 : last])
        before, behind = gaps[first], gaps[last]
        if new:
            written = before + middle + between.join(new) + behind
            new = []
        else:
            ends_it = last == len(parts)
            written = _closed(before, middle + behind, first=first == 0, last=ends_it)
        edits.append(Edit(ends[first], starts[last], written))
    if new and parts:
        edits.append(Edit(ends[-1], ends[-1], "".join(between + one for one in new)))
    elif new:
        edits.append(Edit(begin, end, between.join(new)))
    return edits


def _between(gaps: list[str]) -> str:
    """Return what stands between two parts: on one line, or each on its own as the first is."""
    if "\n" not in gaps[0]:
        return ", "
    broken = gaps[0].rindex("\n")
    return "," + gaps[0][broken - 1 if gaps[0][broken - 1 : broken] == "\r" else broken :]


def _kept_comments(gap: str) -> str:
    """Return a gap without its comma where it has a comment, else nothing."""
    return _without_comma(gap) if "#" in gap else ""


def _without_comma(gap: str) -> str:
    comma = gap.find(",")
    if comma < 0 or "#" in gap[:comma]:
        return gap
    return gap[:comma] + gap[comma + 1 :]


def _closed(before: str, behind: str, *, first: bool, last: bool) -> str:
    """Return what is left between two parts of which the one that stood there is gone."""
    if last and first:
        return _kept_comments(before) + _without_comma(behind) if "#" in before + behind else ""
    if last:
        kept = before.rstrip() if "#" in before else before.split(",", maxsplit=1)[0]
        return _without_comma(kept) + behind if "#" in before else kept + behind
    rest = _without_comma(behind)
    return before + (rest.lstrip(" ") if "#" in rest else rest.strip())
