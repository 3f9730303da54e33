# SPDX-License-Identifier: Apache-2.0
"""The entries of `gpushare explain`: texts beside this file, and gpushare's own tables."""

from __future__ import annotations

import configparser
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare import xid
from gpushare.compatibility import RULES
from gpushare.events import EVENTS, KEPT
from gpushare.quota.dialects import DIALECTS
from gpushare.quota.dialects.vendor_key import Dialect, VendorKey

if TYPE_CHECKING:
    from collections.abc import Iterable


# --- one code or topic, from the files beside this one and from gpushare's tables ---
#
# The tables are those of vendors' keys, rules of compat, events and XIDs. The files are INI as
# configparser reads it: a section is an entry, by its name.
#
#     [CUDA_ERROR_OUT_OF_MEMORY]
#     number = 2
#     also = cudaErrorMemoryAllocation
#     class = memory
#     what = There is not as much memory left as the call asks for.
#     why =
#         ...
#
# | key | | |---|---| | `what` | in a sentence; needed | | `text`; or `why`, `here`, `do` | about
# it; or its causes, what is so under gpushare, what to do | | `number`, `also`, `says` | what else
# finds it: names, and words of messages, one a line | | `group` | under which it is listed, where
# not all of a file are of one | | `class` | the section `[class:NAME]` has what this one leaves out
# | | `see` | other entries, and pages of docs, one a line |
#
# Texts are paragraphs; a line that begins with `- ` is an item, one with `| ` stays as it is. A
# command is between backticks, or after `| `.

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


VENDORS: Final = "Vendors"
#: Other names of the product, or its maker; a maker may have several.
ALSO: Final = {
    "alibaba": ("aliyun", "ack", "cgpu"),
    "egpu": ("aliyun", "pai"),
    "qgpu": ("tencent", "tke"),
    "vcuda": ("tencent", "gpu-manager", "gaiagpu"),
    "elasticgpu": ("tencent",),
    "mgpu": ("volcengine", "vke"),
    "hami": ("hami-core",),
    "volcano": ("volcano-vgpu",),
    "nvidia": ("nvidia-container-toolkit",),
    "kai": ("run:ai", "kai-scheduler"),
    "huawei": ("cce", "xgpu"),
    "baidu": ("baidu-cce",),
    "aws": ("ecs",),
    "gke": ("google",),
    "orionx": ("orion", "virtaitech"),
}
_LOCATIONS: Final = {
    "env": "variable",
    "limit": "resources.limits",
    "label": "label of the pod",
    "node label": "label of a node",
    "node annotation": "annotation of a node",
    "node file": "file of a node",
    "plugin": "configuration of its device plugin",
    "task": "task definition",
}
_TOTAL: Final = "all cards together"


COMPATIBILITY: Final = "Rules of compat"
_COMPATIBILITY_SEE: Final = ("compat", "driver-and-runtime", "docs/reference/compatibility.md")
_COMPATIBILITY_TEXT: Final = (
    "A rule by which `gpushare compat IMAGE`, and gpushared when it creates a container with "
    "a GPU, check the CUDA of an image. `compatibility` in gpushare.yaml sets the action at a "
    "create: a note (warn, the default) or a refusal (refuse)."
)
_COMPATIBILITY_DO: Final = (
    "- `gpushare compat IMAGE` shows the figures and the fix, `gpushare inspect NAME` those of an "
    "existing container."
)
EVENT_GROUP: Final = "Events"
#: The pages to read about events whose names begin so; the first that fits.
_EVENT_SEE: Final = (
    ("over-quota-", ("frozen", "docs/how-to/over-quota.md")),
    ("unallocated-container-", ("audit", "docs/explanation/audit.md")),
    ("memory-", ("audit", "docs/how-to/out-of-memory.md")),
    ("gate-", ("audit", "docs/how-to/compute-shares.md")),
    ("scheduler-", ("policies", "docs/explanation/compute-shares.md")),
    ("card-", ("docs/how-to/recover-a-card.md",)),
    ("driver-limit-", ("isolation", "docs/explanation/isolation.md")),
    ("driver-", ("driver-was-upgraded", "docs/how-to/driver.md")),
    ("cuda-compat-", ("cuda-compat", "docs/how-to/driver.md")),
    ("tenant-image-incompatible", ("compat", "docs/how-to/check-an-image.md")),
    ("tenant-hung", ("hung-container",)),
    ("tenant-bypasses-mps", ("mps", "docs/how-to/mps.md")),
    ("tenant-lost-mps-server", ("mps-neighbour", "docs/how-to/mps.md")),
    ("mps-", ("mps", "docs/how-to/mps.md")),
    ("tenant-evict", ("evicted", "docs/how-to/evict.md")),
    ("tenant-restore", ("evicted", "docs/how-to/evict.md")),
    ("tenant-moved", ("evicted", "docs/how-to/evict.md")),
    ("eviction-", ("evicted", "docs/how-to/evict.md")),
    ("tenant-not-allocated", ("no-gpu-in-container",)),
    ("tenant-frozen", ("frozen", "docs/how-to/pause-and-stop.md")),
    ("tenant-stop-requested", ("docs/how-to/pause-and-stop.md",)),
    ("tenant-resized", ("docs/how-to/resize.md",)),
    ("integrity-", ("reservations-refused", "docs/explanation/failure-modes.md")),
    ("config-", ("docs/how-to/node-policy.md",)),
    ("", ("docs/explanation/failure-modes.md",)),
)
XIDS: Final = "XIDs"
_XID_WHERE: Final = (
    "The driver writes it to the kernel log; `gpushare history --since 1h` shows it with the "
    "processes on the card, because the driver does not always name the one that caused it."
)
_XID_FATAL: Final = (
    "The card is unhealthy from then on: gpushared places no new containers on it, and kills "
    "none. It is healthy again after a reset that gpushared sees, or a restart of gpushared."
)
_XID_NOT_FATAL: Final = (
    "gpushared logs and counts it, and the card stays in use. Other containers have their own "
    "contexts and continue."
)
_XID_SEE: Final = ("docs/how-to/recover-a-card.md",)


def _dialect_entry(dialect: Dialect) -> KnowledgeEntry:
    return KnowledgeEntry(
        dialect.name,
        VENDORS,
        f"Keys of {dialect.title}, and their meaning in gpushare.",
        also=ALSO.get(dialect.name, ()),
        see=("dialects", "units", "limits-and-labels", "docs/reference/dialects.md"),
        parts={"text": "\n".join(_lines(dialect))},
    )


def _lines(dialect: Dialect) -> Iterator[str]:
    for row in dialect.rows:
        if row.role != "record":
            yield f"- {_key(row)}"
    kept = [f"`{row.name}`" for row in dialect.rows if row.role == "record"]
    if kept:
        yield f"- Its own bookkeeping, which requests nothing: {', '.join(kept)}."
    notes = [*dialect.notes, *(_assumed(dialect))]
    if notes:
        yield ""
        yield from (f"- {_sentence(note)}" for note in notes)
    if any(not row.is_visible for row in dialect.rows):
        yield ""
        yield (
            "Only variables and annotations are passed to a runtime. The rest is translated by: "
            f"{dialect.translation}."
        )


def _key(row: VendorKey) -> str:
    """Return `nvidia.com/gpumem` (resources.limits, MiB): Memory of each card. Here: memory."""
    about = [_LOCATIONS.get(row.where, row.where)]
    about += [row.unit.name] if row.unit.name else []
    about += [_TOTAL] if row.summed and _TOTAL not in row.meaning else []
    if row.key:
        here = f"Here: {row.key}, divided by the cards." if row.summed else f"Here: {row.key}."
    else:
        here = f"Here: {row.instead}." if row.instead else ""
    return f"`{row.name}` ({'; '.join(about)}): {_sentence(row.meaning)} {here}".rstrip()


def _assumed(dialect: Dialect) -> Iterator[str]:
    for assumption in dialect.assumed:
        amount = f"the amount of {assumption.like}" if assumption.like else assumption.text
        why = f": {assumption.why}" if assumption.why else ""
        yield f"Without {assumption.key}, it is {amount}{why}"


def _sentence(text: str) -> str:
    sentence = text if text.endswith((".", ":")) else f"{text}."
    return f"{sentence[0].upper()}{sentence[1:]}"


def _compatibility_entry(name: str, what: str) -> KnowledgeEntry:
    parts = {"text": _COMPATIBILITY_TEXT, "do": _COMPATIBILITY_DO}
    return KnowledgeEntry(name, COMPATIBILITY, what, see=_COMPATIBILITY_SEE, parts=parts)


def _event_entry(name: str, what: str) -> KnowledgeEntry:
    see = next(pages for prefix, pages in _EVENT_SEE if name.startswith(prefix))
    journal = f"- `journalctl -u gpushared -o cat | jq 'select(.event == \"{name}\")'`"
    kept = ["- `gpushare history --since 1h` also shows it, as a sentence."] if name in KEPT else []
    about = "An event of gpushared's log; its fields name the container or card, and the reason."
    parts = {"text": about, "do": "\n".join([journal, *kept])}
    return KnowledgeEntry(
        name, EVENT_GROUP, what, see=(*see, "docs/reference/events.md"), parts=parts
    )


def xid_entries() -> list[KnowledgeEntry]:
    """Return an entry for each XID that gpushare describes, by number."""
    described = {
        **{number: _fatal(number, *what) for number, what in xid.FATAL.items()},
        **{number: _of_a_program(number, what) for number, what in xid.OF_A_PROGRAM.items()},
    }
    return [described[number] for number in sorted(described)]


def unknown_xid(number: int) -> KnowledgeEntry:
    """Return the entry of any other XID."""
    what = "An XID that gpushare does not describe."
    do = "- Look up the number in NVIDIA's catalog of XID errors; `dmesg` shows the whole line."
    return _xid_entry(number, what, {"why": _XID_WHERE, "here": _XID_NOT_FATAL, "do": do})


def _fatal(number: int, meaning: str, act: str) -> KnowledgeEntry:
    do = (
        "- `gpushare ls` shows the card's health; `sudo gpushare card drain 0` empties it.\n"
        f"- {act[0].upper()}{act[1:]}."
    )
    parts = {"why": _XID_WHERE, "here": _XID_FATAL, "do": do}
    return _xid_entry(number, f"A fault of the card: {meaning}.", parts)


def _of_a_program(number: int, meaning: str) -> KnowledgeEntry:
    do = (
        "- Check the programs that were on the card: one of them ended with a CUDA error."
        "\n- `compute-sanitizer PROGRAM` finds the kernel."
    )
    parts = {"why": _XID_WHERE, "here": _XID_NOT_FATAL, "do": do}
    return _xid_entry(number, f"Caused by a program: {meaning}.", parts)


def _xid_entry(number: int, what: str, parts: dict[str, str]) -> KnowledgeEntry:
    return KnowledgeEntry(f"xid-{number}", XIDS, what, number, see=_XID_SEE, parts=parts)


# --- all codes and topics ---


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
    VENDORS,
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
    "xid": (XIDS,),
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
    entries = [entry for name, group in _FILES[:4] for entry in read_entries(HERE / name, group)]
    entries += xid_entries()
    entries += [entry for name, group in _FILES[4:] for entry in read_entries(HERE / name, group)]
    return (
        *entries,
        *map(_dialect_entry, DIALECTS.values()),
        *starmap(_compatibility_entry, RULES.items()),
        *starmap(_event_entry, sorted(EVENTS.items())),
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
    start = next((prefix for prefix in _OURS if words.startswith(prefix)), "")
    known = {_folded(name): entry.name for entry in all_entries() for name in _shortened(entry)}
    known |= {
        _folded(name.removeprefix(start)): entry.name
        for entry in all_entries()
        for name in (entry.name, *entry.also)
    }
    close = get_close_matches(_folded(words.removeprefix(start)), known, n=6, cutoff=0.75)
    return list(dict.fromkeys(known[name] for name in close))[:3]


def _entries_of_number(table: str, number: int) -> list[KnowledgeEntry]:
    groups = _TABLES.get(_folded(table), (CUDA, RUNTIME, NVML, XIDS, EXIT))
    entries = [one for one in all_entries() if one.number == number and one.group in groups]
    if not entries and groups == (XIDS,):
        return [unknown_xid(number)]
    return sorted(entries, key=lambda entry: groups.index(entry.group))


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


def _unique(entries: Iterable[KnowledgeEntry]) -> list[KnowledgeEntry]:
    return list({(entry.group, entry.name): entry for entry in entries}.values())
