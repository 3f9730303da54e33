#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How each driver function is handled: reads coverage.txt and checks it against the symbol tables.

    python3 libhook/table/coverage.py           write cuda_refused.inc and nvml_refused.inc
    python3 libhook/table/coverage.py --check   exit 1 if they differ

Both report the errors in coverage.txt and then exit 1: a symbol without a line (with the line to
add), a line without a symbol, a function that may take memory or start work and does not say so.
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

    from libhook.table.elf import ElfLibrary

TABLE: Final = Path(__file__).resolve().parent
SOURCE: Final = TABLE / "coverage.txt"
CLASSES: Final = ("mediated", "view", "refused", "passes")
AUDITS: Final = ("-", "measured", "no-memory")
LINE: Final = re.compile(
    r"(?P<name>(?:cu|nvml)\w+) +(?P<kind>\S+) +(?P<audit>\S+)(?: +(?P<reason>.*))?"
)
SYMBOL_LINE: Final = re.compile(r"^(?:CUDA|NVML)_SYMBOL\((\w+)[,)]", re.MULTILINE)
ERROR: Final = re.compile(r"(?P<error>(?:CUDA|NVML)_ERROR_\w+): (?P<why>.+)")
#: The group of what the tables lack, because no header declares it.
UNDECLARED: Final = "In no header"
#: Names of functions that may take memory of a card.
TAKES: Final = re.compile(
    r"Alloc(?!ation)|Attach|Bind|Create|Enable(?!d)|ExportTable|Import|Instantiate|Load(?!ed)"
    r"|(?<!Tensor)Map(?!ped|Flags)|Open|Prefetch|Register|Reserve|Restore|Retain|SetLimit|Upload"
)
#: Names of functions that start work on a card.
STARTS: Final = re.compile(
    r"^cu(?:Launch|Memcpy|Memset|Graph(?:Launch|Upload)|Stream(?:Write|Wait)Value|StreamBatchMemOp"
    r"|StreamAddCallback)|Async$|Decompress|Dispatch|Enqueue|Execute|FabricCpy|Prefetch|Submit"
)
#: How a reason states whether the function starts work.
WORK: Final = re.compile(r"\b(?:gated: \S|[Nn]o work: \S)")
INCLUDE: Final = """/*
 * Generated from coverage.txt by
 *     python3 libhook/table/coverage.py
 * {count} lines of {library}_REFUSED(symbol, error, why).
 */
"""


class CoverageError(Exception):
    """coverage.txt cannot be parsed; the message names the line."""


@dataclass(frozen=True)
class EntryPoint:
    """A line of coverage.txt: how calls of the function `name` are handled."""

    name: str
    kind: str  # one of CLASSES
    audit: str  # one of AUDITS
    reason: str  # its own, or its group's
    group: str
    number: int  # of the line
    is_own: bool  # whether the reason is the line's own

    @property
    def passes(self) -> bool:
        """Whether the call goes to the driver unchanged."""
        return self.kind == "passes"


def read(text: str) -> list[EntryPoint]:
    """Parse `text`, the content of coverage.txt, and return its lines in order."""
    entries: list[EntryPoint] = []
    group = common = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            group, common = line.removeprefix("## "), ""
        elif line.startswith("> "):
            common = line.removeprefix("> ")
        elif line and not line.startswith("#"):
            match = LINE.fullmatch(line)
            if match is None or match["kind"] not in CLASSES or match["audit"] not in AUDITS:
                raise CoverageError(f"line {number} is not NAME CLASS AUDIT REASON: {line}")
            name, kind, audit, own = match.group("name", "kind", "audit", "reason")
            entries.append(EntryPoint(name, kind, audit, own or common, group, number, bool(own)))
    return entries


def exported() -> list[str]:
    """Return every symbol of cuda.inc and nvml.inc."""
    texts = ((TABLE / name).read_text() for name in ("cuda.inc", "nvml.inc"))
    return [symbol for text in texts for symbol in SYMBOL_LINE.findall(text)]


def undeclared() -> set[str]:
    """Return the functions of drivers that no header declares; programs call the driver's own."""
    entries = read(SOURCE.read_text(encoding="utf-8"))
    return {entry.name for entry in entries if entry.group == UNDECLARED}


def assign(entries: Iterable[EntryPoint], symbols: Iterable[str]) -> dict[str, EntryPoint]:
    """Return the line of each symbol that has one: its own, otherwise that of its base name."""
    by_name = {entry.name: entry for entry in entries}
    found = {symbol: by_name.get(symbol) or by_name.get(split(symbol)[0]) for symbol in symbols}
    return {symbol: entry for symbol, entry in found.items() if entry}


def flaws(entries: Sequence[EntryPoint], symbols: Sequence[str]) -> Iterator[str]:
    """Yield each error in `entries`, which should cover `symbols`."""
    assigned = assign(entries, symbols)
    unknown = [symbol for symbol in symbols if symbol not in assigned]
    if unknown:
        yield "not classified. Add each to coverage.txt, with its class and the reason:"
        for name in sorted({split(symbol)[0] for symbol in unknown}):
            yield f"  {name:<44} passes    -          WHY"
    shared: dict[str, str] = {}
    used = {entry.number for entry in assigned.values()}
    for entry in entries:
        where = f"coverage.txt:{entry.number}: {entry.name}"
        if entry.number not in used and entry.group != UNDECLARED:
            yield f"{where} matches no symbol that another line does not cover"
        if not entry.reason:
            yield f"{where} has no reason, and neither has its group"
        if not entry.is_own and shared.setdefault(entry.group, entry.kind) != entry.kind:
            yield f"{where} is {entry.kind}, but its group's reason is for {shared[entry.group]}"
        if entry.kind == "refused" and not ERROR.fullmatch(entry.reason):
            yield f"{where} is refused: its reason must begin with an error, as NVML_ERROR_X: why"
        if entry.audit != "-" and not entry.is_own:
            yield f"{where} is {entry.audit}: it needs a reason of its own"
        if entry.passes and entry.audit == "-" and TAKES.search(entry.name):
            yield f"{where} passes and may take memory: use measured, or no-memory with the reason"
        if entry.kind != "refused" and STARTS.search(entry.name) and not WORK.search(entry.reason):
            yield f"{where} may start work: its reason must contain `gated: how` or `no work: why`"


def unlike(
    assigned: Mapping[str, EntryPoint], filters: Iterable[ElfLibrary]
) -> Iterator[tuple[str, str]]:
    """Yield each symbol that the libraries handle differently from `assigned`, and how.

    A trampoline is a weak symbol (include/trampoline.h); a mediated function is not.
    """
    weak: dict[str, bool] = {}
    for library in filters:
        weak |= {symbol: symbol in library.weak for symbol in library.exported}
    for symbol, entry in assigned.items():
        expected = f"{entry.kind} in coverage.txt:{entry.number}"
        if symbol not in weak:
            yield symbol, "neither library exports it"
        elif weak[symbol] and not entry.passes:
            yield symbol, f"{expected}, but the library passes it through"
        elif not weak[symbol] and entry.passes:
            yield symbol, f"{expected}, but the library has a function for it"


def refusals(assigned: Mapping[str, EntryPoint]) -> dict[str, str]:
    """Return the lists of functions that are always refused, by file name."""
    rows: dict[str, list[str]] = defaultdict(list)
    for symbol, entry in sorted(assigned.items()):
        if entry.kind == "refused" and (match := ERROR.fullmatch(entry.reason)):
            library = match["error"].partition("_")[0]
            why = match["why"].rstrip(".").replace('"', "'")
            rows[library].append(f'{library}_REFUSED({symbol}, {match["error"]}, "{why}")\n')
    return {
        f"{library.lower()}_refused.inc": INCLUDE.format(count=len(found), library=library)
        + "".join(found)
        for library, found in rows.items()
    }


def main() -> int:
    """Run the command. The exit status is 1 if there is an error."""
    parser = argparse.ArgumentParser(description="Check how each driver function is handled.")
    parser.add_argument("--check", action="store_true", help="write nothing; report differences")
    check = parser.parse_args().check
    symbols = exported()
    try:
        entries = read(SOURCE.read_text(encoding="utf-8"))
    except CoverageError as error:
        print(f"coverage.py: {error}", file=sys.stderr)
        return 1
    wrong = list(flaws(entries, symbols))
    for name, text in refusals(assign(entries, symbols)).items():
        path = TABLE / name
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            wrong.append(f"{name} is out of date. Run python3 libhook/table/coverage.py")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
