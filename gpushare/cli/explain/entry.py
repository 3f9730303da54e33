# SPDX-License-Identifier: Apache-2.0
"""A code or a topic, as text and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpushare import topics
from gpushare.cli.prose import prose, wrapped
from gpushare.quota.errors import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpushare.topics import Entry

_HEADINGS: Final = {
    "text": "",
    "why": "Why it happens",
    "here": "Under gpushare",
    "do": "What to do",
}
_CODES: Final = (
    "Codes: CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation, 2; NVML_ERROR_NO_PERMISSION, "
    "nvml 4; xid-79; exit-3; the log's events, as card-unwell; and messages, in quotes."
)


def lines(found: list[Entry]) -> Iterator[str]:
    """Yield the first of `found` whole, and the names of the others."""
    first, *others = found
    yield f"{first.name}{_called(first)}"
    yield ""
    yield from wrapped(first.what)
    for part in topics.PARTS:
        if part in first.parts:
            heading = _HEADINGS[part]
            yield from ["", heading] if heading else [""]
            yield from prose(first.parts[part], "  " if heading else "")
    if first.see:
        yield ""
        yield from wrapped(f"See {', '.join(map(_named, first.see))}.", rest="    ")
    if others:
        yield ""
        yield from wrapped(f"{_first(first)} It may also be:")
        for other in others:
            yield from wrapped(f"{other.name}: {other.what}", "  ", "    ")


def listed() -> Iterator[str]:
    """Yield the topics by group, a line each, and which codes there are."""
    every = topics.entries()
    width = max(len(entry.name) for entry in every if entry.group in topics.TOPICS)
    for group in topics.TOPICS:
        yield group
        for entry in every:
            if entry.group == group:
                before = f"  {entry.name:<{width}}  "
                yield from wrapped(entry.what, before, " " * len(before))
        yield ""
    yield from wrapped(_CODES)


def unknown(said: str, nor: str = "") -> str:
    """Return what is told of words that nothing is known of; `nor` says what else they are not."""
    close = topics.close(said)
    what = f"nothing is known of {quoted(said)}"
    if close:
        return f"{what}; did you mean {' or '.join(close)}?"
    return (
        f"{what}{nor}; `gpushare explain` lists the topics, and takes messages as they were printed"
    )


def as_data(found: list[Entry]) -> dict[str, Any]:
    """Return what is printed as JSON: the first as it is, the others by name."""
    first, *others = found
    data = _data(first)
    return {**data, **first.parts, "see": list(first.see), "others": [one.name for one in others]}


def as_list(every: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return all entries by name, with a line each."""
    return [_data(entry) for entry in every]


def _data(entry: Entry) -> dict[str, Any]:
    return {
        "kind": "topic" if entry.group in topics.TOPICS else "code",
        "name": entry.name,
        "group": entry.group,
        "number": entry.number,
        "also": list(entry.also),
        "what": entry.what,
    }


def _called(entry: Entry) -> str:
    """Return the number, and the CUDA runtime's name, of a code."""
    if entry.number is None or not entry.name.isupper():
        return ""
    names = [name for name in entry.also if name.startswith("cuda")]
    return f" ({', '.join([str(entry.number), *names])})"


def _named(page: str) -> str:
    return page if page.startswith("docs/") else f"`gpushare explain {page}`"


def _first(entry: Entry) -> str:
    return f"This is {entry.name} ({entry.group})."
