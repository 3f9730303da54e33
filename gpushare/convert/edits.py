# SPDX-License-Identifier: Apache-2.0
"""Edits of a text, and how what is new in it is written."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import yaml

STEP: Final = 2  # spaces that what is new is indented by


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
class New:
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


#: What is written: a string, a number, a mapping, or a list of these.
Data: TypeAlias = "str | int | Quoted | tuple[New, ...] | list[Data]"


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Return `text` with `edits`; CannotEdit where two of them meet."""
    parts: list[str] = []
    done = 0
    for edit in sorted(set(edits), key=lambda edit: (edit.start, edit.end, -edit.depth)):
        if edit.start < done:
            raise CannotEdit("two changes meet here", edit.start)
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*parts, text[done:]])


def scalar(value: str | int | Quoted, *, quoted: bool = False) -> str:
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


def block(entries: Sequence[New], indent: int, dash: int = STEP) -> list[str]:
    """Return the lines of a mapping at `indent`; a list's dashes stand `dash` behind its key."""
    lines: list[str] = []
    for new in entries:
        lines += [" " * indent + comment for comment in new.above]
        head = " " * indent + scalar(new.key) + ":"
        behind = f"  {new.behind}" if new.behind else ""
        if isinstance(new.value, tuple):
            lines += [head + behind, *block(new.value, indent + STEP, dash)]
        elif isinstance(new.value, list):
            lines += [head + behind, *items(new.value, indent + dash, dash)]
        else:
            lines.append(f"{head} {scalar(new.value)}{behind}")
    return lines


def items(values: Sequence[Data], indent: int, dash: int = STEP) -> list[str]:
    """Return the lines of a list whose dashes are at `indent`."""
    lines: list[str] = []
    for value in values:
        if isinstance(value, tuple):
            first, *rest = block([replace(value[0], above=[]), *value[1:]], indent + STEP, dash)
            lines += [" " * indent + comment for comment in value[0].above]
            lines += [" " * indent + "- " + first[indent + STEP :], *rest]
        else:
            lines.append(" " * indent + "- " + flow(value, quoted=False))
    return lines


def flow(value: Data, *, quoted: bool) -> str:
    """Return `value` on one line; `quoted` as JSON has it."""
    if isinstance(value, tuple):
        return "{" + ", ".join(flow_entry(new, quoted=quoted) for new in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item, quoted=quoted) for item in value) + "]"
    return scalar(value, quoted=quoted)


def flow_entry(new: New, *, quoted: bool) -> str:
    """Return an entry of a mapping in braces."""
    return f"{scalar(new.key, quoted=quoted)}: {flow(new.value, quoted=quoted)}"
