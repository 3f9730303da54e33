# SPDX-License-Identifier: Apache-2.0
"""What is known of one code or topic, and how the files beside this one say it.

The files are INI as configparser reads it: a section is an entry, by its name.

    [CUDA_ERROR_OUT_OF_MEMORY]
    number = 2
    also = cudaErrorMemoryAllocation
    class = memory
    what = There is not as much memory left as the call asks for.
    why =
        ...

| key | |
|---|---|
| `what` | in a sentence; needed |
| `text`; or `why`, `here`, `do` | about it; or its causes, what is so under gpushare, what to do |
| `number`, `also`, `says` | what else finds it: names, and words of messages, one a line |
| `group` | under which it is listed, where not all of a file are of one |
| `class` | the section `[class:NAME]` has what this one leaves out |
| `see` | other entries, and pages of docs, one a line |

Texts are paragraphs; a line that begins with `- ` is an item, one with `| ` stays as it is. A
command is between backticks, or after `| `.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: The parts of an entry's text, in the order in which they are read.
PARTS: Final = ("text", "why", "here", "do")
_CLASS: Final = "class:"
_LISTS: Final = ("also", "says", "see")


@dataclass(frozen=True)
class KnowledgeEntry:
    """One code or topic. `parts` has those of PARTS that it has; `kind` says what its class is."""

    name: str
    group: str
    what: str
    number: int | None = None
    also: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    kind: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)


def read_entries(file: Path, group: str) -> Iterator[KnowledgeEntry]:
    """Yield the entries of `file`; those that do not say another are of `group`."""
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(file.read_text(encoding="utf-8"), str(file))
    for name in parser.sections():
        if not name.startswith(_CLASS):
            yield _entry(name, dict(parser[name]), parser, group)


def _entry(
    name: str, section: Mapping[str, str], parser: configparser.RawConfigParser, group: str
) -> KnowledgeEntry:
    shared = dict(parser[_CLASS + section["class"]]) if "class" in section else {}
    whole = {**shared, **section}
    lists = {key: tuple(whole.get(key, "").strip().splitlines()) for key in _LISTS}
    return KnowledgeEntry(
        name,
        section.get("group", group),
        section["what"],
        int(section["number"]) if "number" in section else None,
        **lists,
        kind=shared.get("what", ""),
        parts={part: whole[part].strip("\n") for part in PARTS if part in whole},
    )
