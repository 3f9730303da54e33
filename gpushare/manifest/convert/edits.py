# SPDX-License-Identifier: Apache-2.0
"""What is written into a document, and why one cannot be edited."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

#: What is written: a string, a number, a mapping, or a list of these.
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
    if text != text.strip() or "\n" in text:
        return False
    try:
        return bool(yaml.safe_load(f"{{k: {text}}}") == {"k": text} == yaml.safe_load(f"k: {text}"))
    except yaml.YAMLError:
        return False
