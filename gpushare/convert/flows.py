# SPDX-License-Identifier: Apache-2.0
"""Mappings and lists in flow style, JSON's among them: what stands between their parts.

Only what is between two parts changes, so a part may be changed within at the same time. Comments
between them stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpushare.convert.blocks import Part, runs
from gpushare.convert.edits import Data, Edit, New, flow, flow_entry
from gpushare.convert.tree import Entry, Node

_QUOTE: Final = '"'


def change_mapping(
    text: str, mapping: Node, going: Sequence[Entry], new: Sequence[New]
) -> list[Edit]:
    """Return the edits by which `going` leave a mapping in braces, and `new` come into it."""
    quoted = _quoted(mapping)
    return _change(
        text, mapping, mapping.entries, going, [flow_entry(n, quoted=quoted) for n in new]
    )


def change_list(
    text: str, sequence: Node, going: Sequence[Node], new: Sequence[Data]
) -> list[Edit]:
    """Return the edits by which items leave a list in brackets, and others come into it."""
    quoted = _quoted(sequence)
    written = [flow(one, quoted=quoted) for one in new]
    return _change(text, sequence, sequence.items, going, written)


def _quoted(node: Node) -> bool:
    """Whether keys are quoted here, as JSON's are: the nearest mapping that has any tells."""
    here: Node | None = node
    while here is not None:
        if here.entries and here.flow:
            return here.entries[0].key.style == _QUOTE
        here = here.parent
    return False


def _change(
    text: str,
    node: Node,
    parts: Sequence[Part],
    going: Sequence[Part],
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
        middle = "".join(_comments(gap) for gap in gaps[first + 1 : last])
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


def _comments(gap: str) -> str:
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
        return _comments(before) + _without_comma(behind) if "#" in before + behind else ""
    if last:
        kept = before.rstrip() if "#" in before else before.split(",", maxsplit=1)[0]
        return _without_comma(kept) + behind if "#" in before else kept + behind
    rest = _without_comma(behind)
    return before + (rest.lstrip(" ") if "#" in rest else rest.strip())
