# SPDX-License-Identifier: Apache-2.0
"""The page of codes and topics, from gpushare/knowledge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from docs.markdown import table
from gpushare import knowledge
from gpushare.knowledge import KnowledgeEntry

_HEADINGS: Final = {"why": "Cause", "here": "With gpushare", "do": "Solution"}
_CODES: Final = (
    ("CUDA", "CUDA driver errors", "Results of driver calls, CUresult."),
    (
        "CUDA runtime",
        "CUDA runtime errors",
        "Errors that only the runtime has. All others come from the driver.",
    ),
    ("NVML", "NVML errors", "Results of NVML calls, nvmlReturn_t."),
    ("XIDs", "XIDs", "Errors of a card that the driver reports in the kernel log."),
    ("Exit statuses", "Exit statuses", "Exit statuses of gpushare's programs."),
    ("Rules of compat", "Rules of gpushare compat", "Rules by which an image is checked."),
    ("Refusals", "Refusals", "Requests that gpushare refuses, by subject."),
)
_EVENTS: Final = "For log events, see [Log events](events.md)."


def errors() -> Iterator[str]:
    """Yield every code with its meaning, details where there are any, and the topics."""
    yield "`gpushare explain CODE` prints the same text in a terminal. It also accepts messages as"
    yield "they were printed: `gpushare explain 'CUDA error: an illegal memory access was"
    yield f"encountered'`. `gpushare explain` lists the topics. {_EVENTS}"
    yield ""
    every = knowledge.all_entries()
    for group, title, about in _CODES:
        found = [entry for entry in every if entry.group == group]
        yield from (f"## {title}", "", about, "")
        yield from table(("code", "meaning"), [(_code(entry), entry.what) for entry in found])
        for entry in found:
            if _is_deep(entry):
                yield from _described(entry)
    yield from ("## Topics", "")
    for group in knowledge.TOPICS:
        yield from (f"### {group}", "")
        rows = [(f"`{one.name}`", one.what) for one in every if one.group == group]
        yield from table(("topic", "content"), rows)


def _is_deep(entry: KnowledgeEntry) -> bool:
    """Whether the entry has more than the text common to its kind."""
    return bool(entry.parts.get("why")) and entry.group != "XIDs"


def _code(entry: KnowledgeEntry) -> str:
    number = "" if entry.number is None or not entry.name.isupper() else f" {entry.number}"
    also = [f"`{name}`" for name in entry.also if name.startswith("cuda")]
    return " ".join([f"`{entry.name}`{number}", *also])


def _described(entry: KnowledgeEntry) -> Iterator[str]:
    yield from (f"### {entry.name}", "", entry.what, "")
    for part, heading in _HEADINGS.items():
        if part in entry.parts:
            # Markdown treats a line below an item as part of it.
            text = re.sub(r"(?m)^(- .*)\n(?!- )", r"\1\n\n", entry.parts[part])
            yield from (f"*{heading}.*", "", text, "")
    pages = [page for page in entry.see if page.startswith("docs/")]
    if pages:
        links = [f"[{page.rpartition('/')[2]}](../{page.removeprefix('docs/')})" for page in pages]
        yield from (f"See {', '.join(links)}.", "")
