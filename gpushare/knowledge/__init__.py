# SPDX-License-Identifier: Apache-2.0
"""What `gpushare explain` knows of codes and topics: texts beside this file, and our own tables."""

from __future__ import annotations

import functools
import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.knowledge import entries
from gpushare.knowledge.entries import PARTS, KnowledgeEntry, read_entries

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PARTS", "TOPICS", "KnowledgeEntry", "all_entries", "find_entries", "similar_names"]

HERE: Final = Path(__file__).parent
CUDA: Final = "CUDA"
RUNTIME: Final = "CUDA runtime"
NVML: Final = "NVML"
EXIT: Final = "Exit statuses"
REFUSAL: Final = "Refusals"
#: The groups that a user reads about, in the order in which they are listed; the others are codes.
TOPICS: Final = (
    "Requests",
    "Enforcement",
    "Manifests",
    entries.VENDORS,
    "Versions",
    "Troubles",
)
# Codes before topics: a number, or a word of both, is first of all an error's.
_FILES: Final = (
    ("cuda.ini", CUDA),
    ("runtime.ini", RUNTIME),
    ("nvml.ini", NVML),
    ("exits.ini", EXIT),
    ("concepts.ini", "Requests"),
    ("troubles.ini", "Troubles"),
    ("refusals.ini", REFUSAL),
)
# How a number is distinguished from the same number of another table: `nvml 2`, `exit-3`, `XID 79`.
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
    "xid": (entries.XIDS,),
    "exit": (EXIT,),
    "exitstatus": (EXIT,),
    "status": (EXIT,),
}
#: Of every key of ours: no likeness.
_OURS: Final = ("GPUSHARE_", "gpushare.io/")
_PREFIXES: Final = ("CUDA_ERROR_", "NVML_ERROR_", "cudaError")
# dmesg's form of it: NVRM: Xid (PCI:0000:03:00): 79, pid=...
_KERNELS: Final = re.compile(r"\bxid \([^)]*\): ([0-9]{1,4})", re.IGNORECASE)


@functools.cache
def all_entries() -> tuple[KnowledgeEntry, ...]:
    """Return every entry, codes before topics."""
    found = [entry for name, group in _FILES[:4] for entry in read_entries(HERE / name, group)]
    found += entries.xid_entries()
    found += [entry for name, group in _FILES[4:] for entry in read_entries(HERE / name, group)]
    return (
        *found,
        *entries.dialect_entries(),
        *entries.compatibility_entries(),
        *entries.event_entries(),
    )


def find_entries(words: str) -> list[KnowledgeEntry]:
    """Return what `words` means, the likeliest first; nothing if unknown.

    A name in any spelling, a number, or a message that has one of an entry's names or words in it.
    """
    text = words.strip()
    numbered = _NUMBERED.fullmatch(text)
    if numbered:
        return _entries_of_number(numbered[1] or "", int(numbered[2]))
    folded = _folded(text)
    if not folded:
        return []
    exact = [entry for entry in all_entries() if folded in map(_folded, (entry.name, *entry.also))]
    short = [entry for entry in all_entries() if folded in map(_folded, _shortened(entry))]
    return _unique([*exact, *short]) or _entries_of_message(text)


def similar_names(words: str) -> list[str]:
    """Return names that `words` may have been meant for, the closest first; at most 3."""
    start = next((one for one in _OURS if words.startswith(one)), "")
    known = {_folded(name): entry.name for entry in all_entries() for name in _shortened(entry)}
    known |= {
        _folded(name.removeprefix(start)): entry.name
        for entry in all_entries()
        for name in (entry.name, *entry.also)
    }
    found = get_close_matches(_folded(words.removeprefix(start)), known, n=6, cutoff=0.75)
    return list(dict.fromkeys(known[name] for name in found))[:3]


def _entries_of_number(table: str, number: int) -> list[KnowledgeEntry]:
    groups = _TABLES.get(_folded(table), (CUDA, RUNTIME, NVML, entries.XIDS, EXIT))
    found = [one for one in all_entries() if one.number == number and one.group in groups]
    if not found and groups == (entries.XIDS,):
        return [entries.unknown_xid(number)]
    return sorted(found, key=lambda entry: groups.index(entry.group))


def _entries_of_message(text: str) -> list[KnowledgeEntry]:
    """Return the entries that a message names, otherwise by phrase, the longest first."""
    kernels = _KERNELS.search(text)
    if kernels:
        return _entries_of_number("xid", int(kernels[1]))
    words = {word.casefold() for word in re.findall(r"\w+", text) if len(word) > 8}
    named = [
        entry
        for entry in all_entries()
        if entry.number is not None
        and words & {name.casefold() for name in (entry.name, *entry.also)}
    ]
    if named:
        return named
    message = " ".join(text.casefold().split())
    by_phrase = [
        (-len(phrase), order, entry)
        for order, entry in enumerate(all_entries())
        for phrase in entry.says
        if " ".join(phrase.casefold().split()) in message
    ]
    return _unique(entry for _, _, entry in sorted(by_phrase, key=lambda one: one[:2]))


def _shortened(entry: KnowledgeEntry) -> list[str]:
    names = (entry.name, *entry.also)
    return [
        name.removeprefix(prefix)
        for name in names
        for prefix in _PREFIXES
        if name.startswith(prefix)
    ]


def _folded(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _unique(found: Iterable[KnowledgeEntry]) -> list[KnowledgeEntry]:
    return list({(entry.group, entry.name): entry for entry in found}.values())
