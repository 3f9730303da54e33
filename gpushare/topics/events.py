# SPDX-License-Identifier: Apache-2.0
"""The events of gpushared's log (gpushare/events.py), as entries."""

from __future__ import annotations

from typing import Final

from gpushare.events import EVENTS, KEPT
from gpushare.topics.entry import Entry

GROUP: Final = "Events"
#: What is to be read about events whose names begin so; the first that fits.
_SEE: Final = (
    ("over-quota-", ("frozen", "docs/how-to/over-quota.md")),
    ("unknown-container-", ("audit", "docs/explanation/audit.md")),
    ("memory-", ("audit", "docs/how-to/out-of-memory.md")),
    ("compute-", ("audit", "docs/how-to/compute-shares.md")),
    ("gate-", ("audit", "docs/how-to/compute-shares.md")),
    ("scheduler-", ("policies", "docs/explanation/compute-shares.md")),
    ("card-", ("docs/how-to/card-is-lost.md",)),
    ("driver-limits-", ("isolation", "docs/explanation/isolation.md")),
    ("driver-", ("driver-was-upgraded", "docs/how-to/driver.md")),
    ("compat-", ("cuda-compat", "docs/how-to/driver.md")),
    ("tenant-unfit", ("compat", "docs/how-to/check-an-image.md")),
    ("tenant-hung", ("work-never-ends",)),
    ("tenant-given-none", ("no-gpu-in-container",)),
    ("tenant-frozen", ("frozen", "docs/how-to/pause-and-kick.md")),
    ("tenant-kicked", ("docs/how-to/pause-and-kick.md",)),
    ("tenant-resized", ("docs/how-to/resize.md",)),
    ("state-", ("nothing-new-is-promised", "docs/explanation/faults.md")),
    ("config-", ("docs/how-to/node-policy.md",)),
    ("", ("docs/explanation/faults.md",)),
)


def entries() -> list[Entry]:
    """Return an entry for each event."""
    return [_entry(name, said) for name, said in sorted(EVENTS.items())]


def _entry(name: str, said: str) -> Entry:
    see = next(pages for prefix, pages in _SEE if name.startswith(prefix))
    journal = f"- `journalctl -u gpushared -o cat | jq 'select(.event == \"{name}\")'`"
    kept = ["- `gpushare history --since 1h` has it too, in words."] if name in KEPT else []
    what = "An event of gpushared's log; the fields beside it say of whom and why."
    parts = {"text": what, "do": "\n".join([journal, *kept])}
    return Entry(name, GROUP, said, see=(*see, "docs/reference/events.md"), parts=parts)
