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

*measured* under *audit*: the call may take memory of the card beyond what is charged when it is
made. It is in the driver's figure of the tenant's processes, which the daemon reads, and counts as
[overhead](../explanation/memory-accounting.md) about a second later; a tenant that is over its
quota then gets nothing more until it is within. *no-memory*: the name sounds like an allocation,
and nothing of a card is taken. `./dev check doors` holds the libraries to this page."""


def doors() -> Iterator[str]:
    """Yield each group of the driver's calls: those of one reason in a sentence, others in rows."""
    found = read(SOURCE.read_text(encoding="utf-8"))
    assigned = assign(found, exported())
    yield from INTRO.splitlines()
    yield ""
    counts = Counter(door.kind for door in assigned.values())
    rows = [(kind, str(counts[kind])) for kind in CLASSES]
    yield from table(("class", "symbols"), rows)
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
