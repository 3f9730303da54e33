#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What becomes of each call of the driver: doors.txt, read and held to the tables of symbols.

    python3 libhook/table/doors.py           writes cuda_refused.inc and nvml_refused.inc
    python3 libhook/table/doors.py --check   exits 1 if they differ

Both say what is wrong with doors.txt and exit 1 then: a symbol that no line is about (with the line
to add), a line that is about no symbol, a call that may take memory or start work and says nothing
of it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from libhook.table.symbols import split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from libhook.table.elf import Library

TABLE: Final = Path(__file__).resolve().parent
SOURCE: Final = TABLE / "doors.txt"
CLASSES: Final = ("mediated", "view", "refused", "passes")
AUDITS: Final = ("-", "measured", "no-memory")
LINE: Final = re.compile(
    r"(?P<name>(?:cu|nvml)\w+) +(?P<kind>\S+) +(?P<audit>\S+)(?: +(?P<reason>.*))?"
)
SYMBOL_LINE: Final = re.compile(r"^(?:CUDA|NVML)_SYMBOL\((\w+)[,)]", re.MULTILINE)
ERROR: Final = re.compile(r"(?P<error>(?:CUDA|NVML)_ERROR_\w+): (?P<why>.+)")
#: In a name, a sign that the call may take memory of a card.
TAKES: Final = re.compile(
    r"Alloc(?!ation)|Attach|Bind|Create|Enable(?!d)|ExportTable|Import|Instantiate|Load(?!ed)"
    r"|(?<!Tensor)Map(?!ped|Flags)|Open|Prefetch|Register|Reserve|Restore|Retain|SetLimit|Upload"
)
#: In a name, a sign that the call starts work on a card.
STARTS: Final = re.compile(
    r"^cu(?:Launch|Memcpy|Memset|Graph(?:Launch|Upload)|Stream(?:Write|Wait)Value|StreamBatchMemOp"
    r"|StreamAddCallback)|Async$|Decompress|Dispatch|Enqueue|Execute|FabricCpy|Prefetch|Submit"
)
#: How a reason says whether it does.
WORK: Final = re.compile(r"\b(?:gated: \S|[Nn]o work: \S)")
INCLUDE: Final = """/*
 * Generated from doors.txt by
 *     python3 libhook/table/doors.py
 * {count} lines of {library}_REFUSED(symbol, error, why).
 */
"""


class DoorsError(Exception):
    """doors.txt cannot be read; the message names the line."""


@dataclass(frozen=True)
class Door:
    """A line: what becomes of the calls of `name`."""

    name: str
    kind: str  # one of CLASSES
    audit: str  # one of AUDITS
    reason: str  # its own, or its group's
    group: str
    number: int  # of the line
    is_own: bool  # whether the reason is the line's own

    @property
    def passes(self) -> bool:
        """Whether the call goes to the driver as it is."""
        return self.kind == "passes"


def read(text: str) -> list[Door]:
    """Return the lines of doors.txt, of which `text` is the content, in their order."""
    doors: list[Door] = []
    group = common = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            group, common = line.removeprefix("## "), ""
        elif line.startswith("> "):
            common = line.removeprefix("> ")
        elif line and not line.startswith("#"):
            match = LINE.fullmatch(line)
            if match is None or match["kind"] not in CLASSES or match["audit"] not in AUDITS:
                raise DoorsError(f"line {number} is not NAME CLASS AUDIT REASON: {line}")
            name, kind, audit, own = match.group("name", "kind", "audit", "reason")
            doors.append(Door(name, kind, audit, own or common, group, number, bool(own)))
    return doors


def exported() -> list[str]:
    """Return every symbol of cuda.inc and nvml.inc."""
    texts = ((TABLE / name).read_text() for name in ("cuda.inc", "nvml.inc"))
    return [symbol for text in texts for symbol in SYMBOL_LINE.findall(text)]


def assign(doors: Iterable[Door], symbols: Iterable[str]) -> dict[str, Door]:
    """Return the line of each of `symbols` that has one: its own, else that of its name."""
    by_name = {door.name: door for door in doors}
    found = {symbol: by_name.get(symbol) or by_name.get(split(symbol)[0]) for symbol in symbols}
    return {symbol: door for symbol, door in found.items() if door}


def flaws(doors: Sequence[Door], symbols: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with `doors`, which are to be about `symbols`."""
    assigned = assign(doors, symbols)
    unknown = [symbol for symbol in symbols if symbol not in assigned]
    if unknown:
        yield "not classified; add to doors.txt, each with what becomes of it and why:"
        for name in sorted({split(symbol)[0] for symbol in unknown}):
            yield f"  {name:<44} passes    -          WHY"
    shared: dict[str, str] = {}
    used = {door.number for door in assigned.values()}
    for door in doors:
        where = f"doors.txt:{door.number}: {door.name}"
        if door.number not in used:
            yield f"{where} is no symbol of the tables, or another line has all its symbols"
        if not door.reason:
            yield f"{where} has no reason, nor has its group"
        if not door.is_own and shared.setdefault(door.group, door.kind) != door.kind:
            yield f"{where} is {door.kind}: its group's reason is of what is {shared[door.group]}"
        if door.kind == "refused" and not ERROR.fullmatch(door.reason):
            yield f"{where} is refused: its reason begins with an error, as NVML_ERROR_X: why"
        if door.audit != "-" and not door.is_own:
            yield f"{where} is {door.audit}: it needs a reason of its own that says why"
        if door.passes and door.audit == "-" and TAKES.search(door.name):
            yield f"{where} passes and may take memory: it is measured, or no-memory and why"
        if door.kind != "refused" and STARTS.search(door.name) and not WORK.search(door.reason):
            yield f"{where} may start work: its reason says `gated: how` or `no work: why`"


def unlike(assigned: Mapping[str, Door], filters: Iterable[Library]) -> Iterator[tuple[str, str]]:
    """Yield each symbol with which the filters do otherwise than `assigned` says, and how.

    A trampoline is a weak symbol (include/trampoline.h); a function of ours is not.
    """
    weak: dict[str, bool] = {}
    for library in filters:
        weak |= {symbol: symbol in library.weak for symbol in library.exported}
    for symbol, door in assigned.items():
        said = f"{door.kind} by doors.txt:{door.number}"
        if symbol not in weak:
            yield symbol, "no filter exports it"
        elif weak[symbol] and not door.passes:
            yield symbol, f"{said}, and the filter lets it pass"
        elif not weak[symbol] and door.passes:
            yield symbol, f"{said}, and the filter has a function"


def refusals(assigned: Mapping[str, Door]) -> dict[str, str]:
    """Return file name -> text of the lists of what is refused whatever its arguments are."""
    rows: dict[str, list[str]] = defaultdict(list)
    for symbol, door in sorted(assigned.items()):
        if door.kind == "refused" and (match := ERROR.fullmatch(door.reason)):
            library = match["error"].partition("_")[0]
            why = match["why"].rstrip(".").replace('"', "'")
            rows[library].append(f'{library}_REFUSED({symbol}, {match["error"]}, "{why}")\n')
    return {
        f"{library.lower()}_refused.inc": INCLUDE.format(count=len(found), library=library)
        + "".join(found)
        for library, found in rows.items()
    }


def main() -> int:
    """Run the command; the exit status is 1 where something is wrong."""
    parser = argparse.ArgumentParser(description="What becomes of each call of the driver.")
    parser.add_argument("--check", action="store_true", help="write nothing; say what differs")
    check = parser.parse_args().check
    symbols = exported()
    try:
        doors = read(SOURCE.read_text(encoding="utf-8"))
    except DoorsError as error:
        print(f"doors.py: {error}", file=sys.stderr)
        return 1
    wrong = list(flaws(doors, symbols))
    for name, text in refusals(assign(doors, symbols)).items():
        path = TABLE / name
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            wrong.append(f"{name} is not what doors.txt says: python3 libhook/table/doors.py")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
