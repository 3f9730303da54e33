# SPDX-License-Identifier: Apache-2.0
"""The page of the driver's calls, from libhook/table/doors.txt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from docs.markdown import table
from libhook.table.doors import CLASSES, SOURCE, assign, exported, read

INTRO: Final = """\
What becomes of each call of the CUDA driver and of NVML in a container that shares a card. A line
is for all versions of a call (`_v2`) and its per-thread forms (`_ptsz`, `_ptds`). In a container
with a whole card nothing stands before the driver.

- *mediated*: the filter library decides, counts or waits, then calls the driver.
- *view*: the answer is about the slice, in the card's place.
- *refused*: the answer is the error named; the driver is not asked.
- *passes*: the driver's own answer.

The word before a colon says what is done: *charged*, the bytes count before the driver is asked,
and over the quota the answer is CUDA_ERROR_OUT_OF_MEMORY; *freed*, exactly those are given back;
*settled*, the charge follows what the driver then holds; *counted* and *recorded*, who has what,
so that it is charged once; *gated*, it waits while the container's share of the card's time is used
up, or opens the container's pages first; *no work*, the name sounds as if it used the card, and it
does not.

*measured* under *audit* is a door that is open so far: the call may take memory of the card beyond
what is charged when it is made. It is in the driver's figure of the tenant's processes, which the
daemon reads, and counts as [overhead](../explanation/memory-accounting.md), the line `beyond` of
`gpushare why`, about a second later; a tenant that is over its quota then gets nothing more until
it is within. *no-memory*: the name sounds like an allocation, and nothing of a card is taken.

OpenCL, Vulkan, OpenGL, EGL, OptiX and the video codecs do not come through these calls: NVIDIA's
libraries for them are not in a container that shares a card, only in one with a whole card.

`./dev check doors` holds the libraries to this page."""


def doors() -> Iterator[str]:
    """Yield each group of the driver's calls: those of one reason in a sentence, others in rows."""
    found = read(SOURCE.read_text(encoding="utf-8"))
    assigned = assign(found, exported())
    yield from INTRO.splitlines()
    yield ""
    counts = Counter(door.kind for door in assigned.values())
    open_doors = Counter(door.kind for door in assigned.values() if door.audit == "measured")
    rows = [(kind, str(counts[kind]), str(open_doors[kind])) for kind in CLASSES]
    yield from table(("class", "symbols", "of them measured"), rows)
    for group in dict.fromkeys(door.group for door in found):
        yield from (f"## {group}", "")
        members = [door for door in found if door.group == group]
        own = [door for door in members if door.is_own]
        cells = [(f"`{door.name}`", door.kind, door.audit, door.reason) for door in own]
        if cells:
            yield from table(("call", "class", "audit", "how, or why"), cells)
        common = [door for door in members if not door.is_own]
        if common:
            others = "The others: " if own else ""
            yield f"{others}*{common[0].kind}*. {common[0].reason}"
            yield ""
            yield ", ".join(f"`{door.name}`" for door in common)
            yield ""
