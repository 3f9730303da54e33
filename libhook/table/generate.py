#!/usr/bin/env python3
"""Write the tables of the CUDA driver's and NVML's symbols, or check that they are up to date.

    python3 libhook/table/generate.py           write libhook/table/*.inc
    python3 libhook/table/generate.py --check   exit 1 and show the difference if any differs
    python3 libhook/table/generate.py --library /usr/lib/x86_64-linux-gnu/libcuda.so.1
        print what that library exports and the tables lack; exit 1 if there is any

The first two need pip and the package index (headers.py names the wheels), beside the standard
library; building gpushare needs neither this program nor a CUDA header.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from libhook.table import drivers
from libhook.table.coverage import exported, undeclared
from libhook.table.elf import NotElf, read
from libhook.table.headers import RELEASES, DownloadError, Release, releases
from libhook.table.symbols import (
    Entry,
    HeaderError,
    cuda_symbols,
    cuda_versions,
    enumerators,
    match_versions,
    nvml_symbols,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

TABLE = Path(__file__).resolve().parent
CACHE = TABLE.parent.parent / "build" / "headers"
#: What a driver library exports for programs; cudbg* is for its debugger.
OF_DRIVER = re.compile(r"(?:cu|nvml)[A-Z]\w*")
CUDA_HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")

HEADER = """/*
 * Generated from the headers of CUDA {first} to {last} by
 *     python3 libhook/table/generate.py
 * {count} lines of {macro}({columns}).
{notes} */
"""
CUDA_NOTES = """ *
 * symbol   what the driver library exports
 * name     what a program asks cuGetProcAddress for
 * version  CUDA_VERSION from which `symbol` answers to `name`; an older driver has no such symbol
 *          (65535: no driver for Linux on servers has it)
 * stream   PER_THREAD: the per-thread default stream form (_ptsz, _ptds)
 *          LEGACY: a name that has such a form too; NONE: a name that has none
 *
 * cuGetProcAddress(name, version, flags) answers, among the lines of that name with a version
 * not above the one asked for, the last: of PER_THREAD ones if flags has 2 and there are any, of
 * the others if not. Per name and stream, lines come in rising order of version.
"""
NVML_NOTES = """ *
 * since    CUDA_VERSION of the first driver or header that has the symbol; see drivers.txt
"""
HASH_NOTES = """ *
 * The hash of each symbol of {}.inc, in its order, as DT_GNU_HASH has it: to compute them costs
 * every process that loads the library a tenth of the time.
"""


@dataclass
class Table:
    """The combined content of all releases. Dictionaries map values to names."""

    cuda: set[Entry] = field(default_factory=set)
    nvml: dict[str, list[int]] = field(default_factory=dict)  # symbol -> the releases that have it
    cuda_results: dict[int, tuple[str, list[int]]] = field(default_factory=dict)
    nvml_results: dict[int, tuple[str, list[int]]] = field(default_factory=dict)
    runtime_errors: dict[int, str] = field(default_factory=dict)
    device_attributes: dict[int, str] = field(default_factory=dict)


def tabulate(every: Iterable[Release]) -> Table:
    """Return the table of `every` release, given oldest first.

    Symbols and versions are matched over all releases at once, so that two releases which give
    one symbol different versions raise HeaderError as a version too many.
    """
    table = Table()
    symbols: set[str] = set()
    versions: set[tuple[str, str, int]] = set()
    for release in every:
        for header in CUDA_HEADERS:
            symbols |= cuda_symbols(release.text.get(header, ""))
            versions |= cuda_versions(release.text.get(header.replace(".h", "Typedefs.h"), ""))
        cuda_h = release.text["cuda.h"]
        _add(table.cuda_results, enumerators(cuda_h, "cudaError_enum"), release.version)
        table.device_attributes |= enumerators(cuda_h, "CUdevice_attribute_enum")
        if nvml_h := release.text.get("nvml.h"):
            for symbol in nvml_symbols(nvml_h):
                table.nvml.setdefault(symbol, []).append(release.version)
            _add(table.nvml_results, enumerators(nvml_h, "nvmlReturn_enum"), release.version)
        if driver_types_h := release.text.get("driver_types.h"):
            table.runtime_errors |= enumerators(driver_types_h, "cudaError")
    table.cuda = match_versions(symbols, versions)
    return table


def _add(results: dict[int, tuple[str, list[int]]], found: Mapping[int, str], version: int) -> None:
    for value, name in found.items():
        _, versions = results.get(value, (name, []))
        results[value] = name, [*versions, version]


def render(table: Table) -> dict[str, str]:
    """Return file name -> text of every generated file.

    The order of lines depends on nothing but the names and numbers in `table`.
    """
    cuda = [
        f"{e.symbol}, {e.name}, {drivers.NEVER if e.symbol in drivers.NOWHERE else e.version}, "
        f"{e.stream}"
        for e in sorted(table.cuda)
    ]
    facts = drivers.read()
    results = list(_results("cuda", table.cuda_results, facts))
    nvml_results = list(_results("nvml", table.nvml_results, facts))
    runtime_errors = [f"{n}, {v}" for v, n in sorted(table.runtime_errors.items())]
    nvml = [
        f"{symbol}, {facts.since(headers, facts.functions.get(symbol))}"
        for symbol, headers in sorted(table.nvml.items())
    ]
    attributes = [f"{n}, {v}" for v, n in sorted(table.device_attributes.items())]
    cuda_hashes = [f"{gnu_hash(e.symbol):#010x}" for e in sorted(table.cuda)]
    nvml_hashes = [f"{gnu_hash(symbol):#010x}" for symbol in sorted(table.nvml)]
    return {
        "cuda_hash.inc": lines("GNU_HASH", "hash", cuda_hashes, HASH_NOTES.format("cuda")),
        "nvml_hash.inc": lines("GNU_HASH", "hash", nvml_hashes, HASH_NOTES.format("nvml")),
        "cuda.inc": lines("CUDA_SYMBOL", "symbol, name, version, stream", cuda, CUDA_NOTES),
        "nvml.inc": lines("NVML_SYMBOL", "symbol, since", nvml, NVML_NOTES),
        "cuda_result.inc": lines("CUDA_RESULT", "name, value, since, words", results),
        "nvml_result.inc": lines("NVML_RESULT", "name, value, since, words", nvml_results),
        "runtime_error.inc": lines("RUNTIME_ERROR", "name, value", runtime_errors),
        "device_attribute.inc": lines("CUDA_DEVICE_ATTRIBUTE", "name, value", attributes),
    }


def _results(
    kind: str, results: Mapping[int, tuple[str, list[int]]], facts: drivers.DriverFacts
) -> Iterator[str]:
    """Yield a row for each error: from which CUDA version on it has words, and the words."""
    for value, (name, headers) in sorted(results.items()):
        first, text = facts.errors.get((kind, value), (None, words(name)))
        yield f'{name}, {value}, {facts.since(headers, first)}, "{text}"'


def lines(macro: str, columns: str, rows: Sequence[str], notes: str = "") -> str:
    """Return the text of a file that calls `macro` once for each of `rows`."""
    first, *_, last = RELEASES
    head = HEADER.format(
        first=first, last=last, count=len(rows), macro=macro, columns=columns, notes=notes
    )
    return head + "".join(f"{macro}({row})\n" for row in rows)


def gnu_hash(symbol: str) -> int:
    """Return the hash with which DT_GNU_HASH finds `symbol`."""
    value = 5381
    for letter in symbol.encode():
        value = (value * 33 + letter) & 0xFFFFFFFF
    return value


def words(name: str) -> str:
    """Return what an error constant says: CUDA_ERROR_OUT_OF_MEMORY is "out of memory"."""
    return re.sub(r"^(CUDA|NVML)_(ERROR_)?", "", name).replace("_", " ").lower()


def differences(committed: Path, texts: Mapping[str, str]) -> str:
    """Return a unified diff from the files in the folder `committed` to `texts`; empty if equal."""
    found: list[str] = []
    for name, text in texts.items():
        path = committed / name
        old = path.read_text() if path.exists() else ""
        found += difflib.unified_diff(
            old.splitlines(True), text.splitlines(True), f"committed/{name}", f"headers/{name}", n=1
        )
    return "".join(found)


def unknown(library: Path) -> list[str]:
    """Return what the driver library exports for programs and the committed tables have not.

    Raises NotElf where it is no library, OSError where it cannot be read.
    """
    known = {*exported(), *undeclared()}
    return sorted(filter(OF_DRIVER.fullmatch, read(library).exported - known))


def compare(library: Path) -> int:
    """Print what is unknown() of `library`; return the exit status."""
    try:
        names = unknown(library)
    except (NotElf, OSError) as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 1
    for name in names:
        print(name)
    return 1 if names else 0


def main() -> int:
    """Run the command; the exit status is 1 if files differ or headers cannot be read."""
    parser = argparse.ArgumentParser(description="Generate the driver's symbol tables.")
    parser.add_argument("--check", action="store_true", help="compare only, exit 1 if they differ")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for downloaded wheels")
    parser.add_argument("--library", type=Path, help="a driver's library to compare with")
    arguments = parser.parse_args()
    if arguments.library:
        return compare(arguments.library)
    try:
        texts = render(tabulate(releases(arguments.cache)))
    except (DownloadError, HeaderError) as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 1
    if not arguments.check:
        for name, text in texts.items():
            (TABLE / name).write_text(text)
        return 0
    difference = differences(TABLE, texts)
    if difference:
        sys.stdout.write(difference)
        print("generate.py: libhook/table is not what the headers say; run it without --check")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
