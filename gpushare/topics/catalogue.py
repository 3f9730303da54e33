# SPDX-License-Identifier: Apache-2.0
"""All entries, and which of them a word, a number or a message means."""

from __future__ import annotations

import functools
import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.topics import events, fits, vendors, xids
from gpushare.topics.entry import Entry, read

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE: Final = Path(__file__).parent
CUDA: Final = "CUDA"
RUNTIME: Final = "CUDA runtime"
NVML: Final = "NVML"
EXIT: Final = "Exit statuses"
REFUSAL: Final = "Refusals"
#: The groups that a user reads about, in the order in which they are listed; the others are codes.
TOPICS: Final = ("Asking", "Holding", "Bringing manifests", vendors.GROUP, "Versions", "Troubles")
# Codes before topics: a number, or a word of both, is first of all an error's.
_FILES: Final = (
    ("cuda.ini", CUDA),
    ("runtime.ini", RUNTIME),
    ("nvml.ini", NVML),
    ("exits.ini", EXIT),
    ("concepts.ini", "Asking"),
    ("troubles.ini", "Troubles"),
    ("refusals.ini", REFUSAL),
)
# How a number is told from the same number of another table: `nvml 2`, `exit-3`, `XID 79`.
_NUMBERED: Final = re.compile(
    r"(cuda ?error|cuda|curesult|nvml ?error|nvml|xid|exit ?status|exit|status|error)?"
    r"[\s:#=(-]*([0-9]{1,5})\)?",
    re.IGNORECASE,
)
_TABLES: Final = {
    "cuda": (CUDA, RUNTIME),
    "curesult": (CUDA,),
    "cudaerror": (CUDA, RUNTIME),
    "nvml": (NVML,),
    "nvmlerror": (NVML,),
    "xid": (xids.GROUP,),
    "exit": (EXIT,),
    "exitstatus": (EXIT,),
    "status": (EXIT,),
}
_PREFIXES: Final = ("CUDA_ERROR_", "NVML_ERROR_", "cudaError")
# dmesg's form of it: NVRM: Xid (PCI:0000:03:00): 79, pid=...
_KERNELS: Final = re.compile(r"\bxid \([^)]*\): ([0-9]{1,4})", re.IGNORECASE)


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Return every entry, codes before topics."""
    found = [entry for name, group in _FILES[:4] for entry in read(HERE / name, group)]
    found += xids.entries()
    found += [entry for name, group in _FILES[4:] for entry in read(HERE / name, group)]
    return (*found, *vendors.entries(), *fits.entries(), *events.entries())


def find(words: str) -> list[Entry]:
    """Return what `words` means, the likeliest first; nothing where nobody knows.

    A name in any spelling, a number, or a message that has one of an entry's names or words in it.
    """
    text = words.strip()
    numbered = _NUMBERED.fullmatch(text)
    if numbered:
        return _numbered(numbered[1] or "", int(numbered[2]))
    said = _folded(text)
    if not said:
        return []
    exact = [entry for entry in entries() if said in map(_folded, (entry.name, *entry.also))]
    short = [entry for entry in entries() if said in map(_folded, _shortened(entry))]
    return _once([*exact, *short]) or _message(text)


def close(words: str) -> list[str]:
    """Return names that `words` may have been meant for, the closest first; at most 3."""
    known = {_folded(name): entry.name for entry in entries() for name in (entry.name, *entry.also)}
    known |= {_folded(name): entry.name for entry in entries() for name in _shortened(entry)}
    found = get_close_matches(_folded(words), known, n=6, cutoff=0.75)
    return list(dict.fromkeys(known[name] for name in found))[:3]


def _numbered(table: str, number: int) -> list[Entry]:
    groups = _TABLES.get(_folded(table), (CUDA, RUNTIME, NVML, xids.GROUP, EXIT))
    found = [one for one in entries() if one.number == number and one.group in groups]
    if not found and groups == (xids.GROUP,):
        return [xids.unknown(number)]
    return sorted(found, key=lambda entry: groups.index(entry.group))


def _message(text: str) -> list[Entry]:
    """Return whose names stand in a message, else whose words do, the longest first."""
    kernels = _KERNELS.search(text)
    if kernels:
        return _numbered("xid", int(kernels[1]))
    words = {word.casefold() for word in re.findall(r"\w+", text) if len(word) > 8}
    named = [
        entry
        for entry in entries()
        if entry.number is not None
        and words & {name.casefold() for name in (entry.name, *entry.also)}
    ]
    if named:
        return named
    message = " ".join(text.casefold().split())
    said = [
        (-len(phrase), order, entry)
        for order, entry in enumerate(entries())
        for phrase in entry.says
        if " ".join(phrase.casefold().split()) in message
    ]
    return _once(entry for _, _, entry in sorted(said, key=lambda one: one[:2]))


def _shortened(entry: Entry) -> list[str]:
    names = (entry.name, *entry.also)
    return [
        name.removeprefix(prefix)
        for name in names
        for prefix in _PREFIXES
        if name.startswith(prefix)
    ]


def _folded(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _once(found: Iterable[Entry]) -> list[Entry]:
    return list({(entry.group, entry.name): entry for entry in found}.values())
