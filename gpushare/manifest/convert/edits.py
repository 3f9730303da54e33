# SPDX-License-Identifier: Apache-2.0
"""Edits of a text: its lines and comments, and how new YAML is written."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import yaml

_BEHIND: Final = re.compile(r"[ \t]+(#[^\r\n]*)")
_OWN: Final = re.compile(r"[ \t]*(#[^\r\n]*)")


INDENT: Final = 2  # spaces that what is new is indented by
#: What is written: a string, a number, a mapping, or a list of these.
Data: TypeAlias = "str | int | Quoted | tuple[NewText, ...] | list[Data]"


def line_start(text: str, index: int) -> int:
    """Return where the line of `index` begins."""
    return text.rfind("\n", 0, index) + 1


def line_end(text: str, index: int) -> int:
    """Return where the line of `index` ends, before its line break."""
    found = text.find("\n", index)
    if found < 0:
        return len(text)
    return found - 1 if text[found - 1 : found] == "\r" and found > index else found


def next_line(text: str, index: int) -> int:
    """Return where the line after that of `index` begins."""
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


def column(text: str, index: int) -> int:
    """Return how far `index` is in its line."""
    return index - line_start(text, index)


def line_of(text: str, index: int) -> int:
    """Return the number of the line of `index`, from 1."""
    return text.count("\n", 0, index) + 1


def line_break(text: str) -> str:
    """Return how the lines of `text` end: as the first does."""
    end = text.find("\n")
    return "\r\n" if text[end - 1 : end] == "\r" else "\n"


def begins_line(text: str, index: int) -> bool:
    """Whether only spaces stand before `index` in its line."""
    return not text[line_start(text, index) : index].strip(" ")


def comment_behind(text: str, end: int) -> str:
    """Return the comment behind what ends at `end`; empty where there is none."""
    match = _BEHIND.match(text, end)
    return match.group(1) if match else ""


def comments_between(text: str, start: int, end: int) -> list[str]:
    """Return the comments that have a line of their own between `start` and `end`.

    What is between must be no node: a `#` in a text of several lines is no comment.
    """
    first = start if start == line_start(text, start) else next_line(text, start)
    found = (_OWN.fullmatch(line) for line in text[first:end].splitlines())
    return [match.group(1) for match in found if match]


def comments_above(text: str, index: int) -> tuple[int, list[str]]:
    """Return the comments right above the line of `index`, indented as it, and where they begin."""
    indent, start = column(text, index), line_start(text, index)
    found: list[str] = []
    while start:
        above = line_start(text, start - 1)
        match = _OWN.match(text, above)
        if match is None or match.start(1) - above != indent:
            break
        found.insert(0, match.group(1).rstrip())
        start = above
    return start, found


def skip_space(text: str, index: int) -> int:
    """Return where the next letter is that is neither a space nor of a comment."""
    while index < len(text):
        if text[index] == "#":
            index = line_end(text, index)
        elif not text[index].isspace():
            break
        index += 1
    return index


class CannotEdit(Exception):  # its caller adds where and what to do
    """A text whose meaning an edit in place would change; the text says why."""

    def __init__(self, why: str, index: int) -> None:
        super().__init__(why)
        self.index = index


@dataclass(frozen=True)
class Edit:
    """Characters `start` to `end` of the text become `text`.

    Of several that put something in at the same place the one that stands `deeper` comes first: it
    belongs to what ends there.
    """

    start: int
    end: int
    text: str
    depth: int = 0


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


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return `text` with `edits`; CannotEdit where two of them meet."""
    parts: list[str] = []
    done = 0
    for edit in sorted(set(edits), key=lambda edit: (edit.start, edit.end, -edit.depth)):
        if edit.start < done:
            raise CannotEdit("two changes overlap here", edit.start)
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*parts, text[done:]])


def scalar_text(value: str | int | Quoted, *, quoted: bool = False) -> str:
    """Return how YAML, and with `quoted` JSON, writes a string or a number."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Quoted):
        return json.dumps(value.text, ensure_ascii=False)
    if quoted or not _plain(value):
        return json.dumps(value, ensure_ascii=False)
    return value


@functools.lru_cache(1024)
def _plain(text: str) -> bool:
    """Whether YAML reads `text` without quotes as this string, in a block and in braces."""
    if text != text.strip() or "\n" in text:
        return False
    try:
        return bool(yaml.safe_load(f"{{k: {text}}}") == {"k": text} == yaml.safe_load(f"k: {text}"))
    except yaml.YAMLError:
        return False


def block_lines(entries: Sequence[NewText], indent: int, dash: int = INDENT) -> list[str]:
    """Return the lines of a mapping at `indent`; a list's dashes stand `dash` behind its key."""
    lines: list[str] = []
    for new in entries:
        lines += [" " * indent + comment for comment in new.above]
        head = " " * indent + scalar_text(new.key) + ":"
        behind = f"  {new.behind}" if new.behind else ""
        if isinstance(new.value, tuple):
            lines += [head + behind, *block_lines(new.value, indent + INDENT, dash)]
        elif isinstance(new.value, list):
            lines += [head + behind, *item_lines(new.value, indent + dash, dash)]
        else:
            lines.append(f"{head} {scalar_text(new.value)}{behind}")
    return lines


def item_lines(values: Sequence[Data], indent: int, dash: int = INDENT) -> list[str]:
    """Return the lines of a list whose dashes are at `indent`."""
    lines: list[str] = []
    for value in values:
        if isinstance(value, tuple):
            first, *rest = block_lines(
                [replace(value[0], above=[]), *value[1:]], indent + INDENT, dash
            )
            lines += [" " * indent + comment for comment in value[0].above]
            lines += [" " * indent + "- " + first[indent + INDENT :], *rest]
        else:
            lines.append(" " * indent + "- " + flow_text(value, quoted=False))
    return lines


def flow_text(value: Data, *, quoted: bool) -> str:
    """Return `value` on one line; `quoted` as JSON has it."""
    if isinstance(value, tuple):
        return "{" + ", ".join(flow_entry(new, quoted=quoted) for new in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow_text(item, quoted=quoted) for item in value) + "]"
    return scalar_text(value, quoted=quoted)


def flow_entry(new: NewText, *, quoted: bool) -> str:
    """Return an entry of a mapping in braces."""
    return f"{scalar_text(new.key, quoted=quoted)}: {flow_text(new.value, quoted=quoted)}"
