"""Parses from CUDA headers what a driver library exports, and since which version.

The rules, found in cuda.h and cudaTypedefs.h themselves:

- cuda.h declares a function by its plain name after `#define cuMemAlloc cuMemAlloc_v2`; near
  its end it takes these definitions back (`#undef`) and declares the older symbols. Read in
  order, the definition in force at a declaration gives the exported symbol.
- `__CUDA_API_PTSZ(cuX)` is cuX, and cuX_ptsz in a program compiled for per-thread default
  streams (PTDS: cuX_ptds). The library exports both.
- cudaTypedefs.h has one `PFN_cuX_vVERSION` per symbol of the name cuX, and one
  `PFN_cuX_vVERSION_ptsz` per per-thread symbol. In order of version they are cuX, cuX_v2, ...
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
CONTINUATION = re.compile(r"\\\r?\n")
CUDA_STATEMENT = re.compile(
    r"""^[ \t]*\#[ \t]*define[ \t]+(?P<alias>cu\w+)[ \t]+
            (?:(?P<macro>__CUDA_API_PT(?:DS|SZ))\((?P<stream>\w+)\)|(?P<plain>cu\w+))[ \t]*$
      | ^[ \t]*\#[ \t]*undef[ \t]+(?P<undef>cu\w+)
      | \bCUDAAPI\s+(?P<declared>cu\w+)\s*\(""",
    re.MULTILINE | re.VERBOSE,
)
TYPEDEF = re.compile(r"\bPFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)\s*\(")
NVML_DECLARATION = re.compile(r"\bDECLDIR\s*(?:char\s*\*\s*)?(nvml\w+)\s*\(")
SYMBOL = re.compile(r"(?P<name>\w+?)(?:_v(?P<revision>\d+))?(?P<suffix>_ptsz|_ptds)?")
ENUMERATOR = re.compile(r"\b([A-Za-z]\w+)\s*=\s*(0x[0-9A-Fa-f]+|\d+)\s*(?:,|$)")
PER_THREAD_SUFFIX = {"__CUDA_API_PTDS": "_ptds", "__CUDA_API_PTSZ": "_ptsz"}


class HeaderError(Exception):
    """The headers violate the rules above; the message names the symbol."""


@dataclass(frozen=True, order=True)
class Entry:
    """One exported symbol of the CUDA driver, as cuGetProcAddress knows it."""

    name: str
    stream: str  # NONE, LEGACY or PER_THREAD
    version: int  # since which `symbol` stands for `name`: 11020 is CUDA 11.2
    symbol: str


def without_comments(text: str) -> str:
    """Return `text` with its comments blanked and its continued lines joined."""
    return CONTINUATION.sub(" ", COMMENT.sub(" ", text))


def cuda_symbols(text: str) -> set[str]:
    """Return the symbols that the CUDA driver exports, by the header `text`."""
    aliases: dict[str, list[str]] = {}
    exported: set[str] = set()
    for statement in CUDA_STATEMENT.finditer(without_comments(text)):
        if statement["plain"]:
            aliases[statement["alias"]] = [statement["plain"]]
        elif statement["stream"]:
            symbol = statement["stream"]
            aliases[statement["alias"]] = [symbol, symbol + PER_THREAD_SUFFIX[statement["macro"]]]
        elif statement["undef"]:
            aliases.pop(statement["undef"], None)
        else:
            exported.update(aliases.get(statement["declared"], [statement["declared"]]))
    return exported


def cuda_versions(text: str) -> set[tuple[str, str, int]]:
    """Return (name, suffix, version) of every function typedef in the header `text`."""
    found = TYPEDEF.finditer(without_comments(text))
    return {(match[1], match[3] or "", int(match[2])) for match in found}


def nvml_symbols(text: str) -> set[str]:
    """Return the functions that nvml.h declares.

    Old names are declared in addition to the `_vN` that its #defines replace them with: the library
    exports both.
    """
    return set(NVML_DECLARATION.findall(without_comments(text)))


def enumerators(text: str, tag: str) -> dict[int, str]:
    """Return value -> name of `enum tag` in the header `text`.

    A value's first name wins: what follows under the same value is a deprecated synonym.
    """
    # driver_types.h has an attribute of its own between the two.
    opening = rf"\benum\s+(?:__device_builtin__\s+)?{tag}\s*"
    match = re.search(rf"{opening}\{{(.*?)\}}", without_comments(text), re.DOTALL)
    if match is None:
        raise HeaderError(f"no enum {tag} in the header")
    values: dict[int, str] = {}
    for name, number in ENUMERATOR.findall(match[1]):
        values.setdefault(int(number, 0), name)
    return values


def match_versions(symbols: Iterable[str], versions: Iterable[tuple[str, str, int]]) -> set[Entry]:
    """Assign to each of `symbols` the version since which it stands for its name.

    Raises HeaderError if a name has more symbols than versions, or fewer.
    """
    exported: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for symbol in symbols:
        name, revision, suffix = split(symbol)
        exported[name, suffix].append((revision, symbol))
    known: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name, suffix, version in versions:
        known[name, suffix].append(version)
    per_thread = {name for name, suffix in exported if suffix}

    entries: set[Entry] = set()
    for name, suffix in sorted(exported.keys() | known.keys()):
        ordered = [symbol for _, symbol in sorted(exported[name, suffix])]
        rising = sorted(known[name, suffix])
        if len(ordered) != len(rising):
            raise HeaderError(f"{name}{suffix}: symbols {ordered}, versions {rising}")
        stream = "PER_THREAD" if suffix else "LEGACY" if name in per_thread else "NONE"
        for symbol, version in zip(ordered, rising, strict=True):
            entries.add(Entry(name, stream, version, symbol))
    return entries


def split(symbol: str) -> tuple[str, int, str]:
    """Return (name, revision, suffix): cuMemAllocAsync_v2_ptsz is cuMemAllocAsync, 2, _ptsz."""
    match = SYMBOL.fullmatch(symbol)
    if match is None:
        raise HeaderError(f"{symbol!r} is not a symbol")
    return match["name"], int(match["revision"] or 1), match["suffix"] or ""
