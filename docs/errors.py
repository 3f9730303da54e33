# SPDX-License-Identifier: Apache-2.0
"""The page of codes and topics, from gpushare/topics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from docs.markdown import table
from gpushare import topics
from gpushare.topics import Entry

_HEADINGS: Final = {"why": "Why", "here": "Under gpushare", "do": "What to do"}
_CODES: Final = (
    ("CUDA", "Errors of CUDA's driver", "What a call of the driver answers, CUresult."),
    ("CUDA runtime", "Errors of CUDA's runtime alone", "The others it has of the driver."),
    ("NVML", "Errors of NVML", "What NVML answers, nvmlReturn_t."),
    ("XIDs", "XIDs", "What the driver reports of a card, in the kernel's log."),
    ("Exit statuses", "Exit statuses", "What gpushare's programs end with."),
    ("Rules of compat", "Rules of gpushare compat", "What an image is judged by."),
    ("Refusals", "Refusals", "gpushare's own, by what they are about."),
)
_EVENTS: Final = "Events of the log have [a page of their own](events.md)."


def errors() -> Iterator[str]:
    """Yield every code with what it is, in depth where there is more to say, and the topics."""
    yield "`gpushare explain CODE` says the same in a terminal, and takes messages as they were"
    yield "printed: `gpushare explain 'CUDA error: an illegal memory access was encountered'`."
    yield f"`gpushare explain` lists the topics. {_EVENTS}"
    yield ""
    every = topics.entries()
    for group, title, about in _CODES:
        found = [entry for entry in every if entry.group == group]
        yield from (f"## {title}", "", about, "")
        yield from table(("code", "what it is"), [(_code(entry), entry.what) for entry in found])
        for entry in found:
            if _is_deep(entry):
                yield from _described(entry)
    yield from ("## Topics", "")
    for group in topics.TOPICS:
        yield from (f"### {group}", "")
        rows = [(f"`{one.name}`", one.what) for one in every if one.group == group]
        yield from table(("topic", "what it says"), rows)


def _is_deep(entry: Entry) -> bool:
    """Whether more is known of it than of all of its kind."""
    return bool(entry.parts.get("why")) and entry.group != "XIDs"


def _code(entry: Entry) -> str:
    number = "" if entry.number is None or not entry.name.isupper() else f" {entry.number}"
    also = [f"`{name}`" for name in entry.also if name.startswith("cuda")]
    return " ".join([f"`{entry.name}`{number}", *also])


def _described(entry: Entry) -> Iterator[str]:
    yield from (f"### {entry.name}", "", entry.what, "")
    for part, heading in _HEADINGS.items():
        if part in entry.parts:
            # Markdown takes a line below an item for more of it.
            text = re.sub(r"(?m)^(- .*)\n(?!- )", r"\1\n\n", entry.parts[part])
            yield from (f"*{heading}.*", "", text, "")
    pages = [page for page in entry.see if page.startswith("docs/")]
    if pages:
        links = [f"[{page.rpartition('/')[2]}](../{page.removeprefix('docs/')})" for page in pages]
        yield from (f"More: {', '.join(links)}.", "")
