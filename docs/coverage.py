# SPDX-License-Identifier: Apache-2.0
"""The page of the driver's functions, from libhook/table/coverage.txt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from docs.markdown import table
from libhook.table.coverage import CLASSES, SOURCE, assign, exported, read

INTRO: Final = """\
How each function of the CUDA driver and of NVML is handled in a container that shares a card. A
line covers all versions of a function (`_v2`) and its per-thread forms (`_ptsz`, `_ptds`). A
container with a whole card uses the driver directly.

- *mediated*: the interposer library decides, counts or waits, then calls the driver.
- *view*: the result describes the container's share instead of the card.
- *refused*: the function returns the error that is named. The driver is not called.
- *passes*: the call goes to the driver unchanged.

The word before a colon names the handling. *charged*: the bytes are counted before the driver is
called, and over the quota the function returns CUDA_ERROR_OUT_OF_MEMORY. *freed*: exactly those
bytes are released. *settled*: the charge follows what the driver holds afterwards. *counted* and
*recorded*: the library keeps track of the owner, so that memory is charged once. *gated*: the call
waits while the container has used up its share of the card's time, or opens the container's pages
first. *no work*: the name suggests work on the card, but there is none.

*measured* under *audit* marks a gap: the function may take more memory of the card than is charged
when it is called. That memory is in the driver's figure for the container's processes. The daemon
reads this figure and charges the difference about a second later as
[overhead](../explanation/memory-accounting.md), the line `beyond` of `gpushare why`. A container
that is over its quota then cannot allocate until it is within it again. *no-memory*: the name
suggests an allocation, but no memory of the card is taken.

OpenCL, Vulkan, OpenGL, EGL, OptiX and the video codecs do not use these functions. NVIDIA's
libraries for them are only available in a container with a whole card.

`./dev check coverage` checks the libraries against this page."""


def coverage() -> Iterator[str]:
    """Yield each group of driver functions: a sentence for a shared reason, rows for the others."""
    found = read(SOURCE.read_text(encoding="utf-8"))
    assigned = assign(found, exported())
    yield from INTRO.splitlines()
    yield ""
    counts = Counter(entry.kind for entry in assigned.values())
    measured = Counter(entry.kind for entry in assigned.values() if entry.audit == "measured")
    rows = [(kind, str(counts[kind]), str(measured[kind])) for kind in CLASSES]
    yield from table(("class", "symbols", "of which measured"), rows)
    for group in dict.fromkeys(entry.group for entry in found):
        yield from (f"## {group}", "")
        members = [entry for entry in found if entry.group == group]
        own = [entry for entry in members if entry.is_own]
        cells = [(f"`{entry.name}`", entry.kind, entry.audit, entry.reason) for entry in own]
        if cells:
            yield from table(("function", "class", "audit", "handling"), cells)
        common = [entry for entry in members if not entry.is_own]
        if common:
            others = "The others: " if own else ""
            yield f"{others}*{common[0].kind}*. {common[0].reason}"
            yield ""
            yield ", ".join(f"`{entry.name}`" for entry in common)
            yield ""
