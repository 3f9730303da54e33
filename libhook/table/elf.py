# SPDX-License-Identifier: Apache-2.0
"""Reads from a shared library which symbols it exports and which libraries it needs.

Only 64-bit little-endian ELF, which is every machine that NVIDIA's driver runs on. Source:
elf(5). The section headers are used: no driver library comes without them.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
DYNAMIC = struct.Struct("<qQ")
SHT_DYNAMIC, SHT_DYNSYM = 6, 11
STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE = 1, 2, 10
SHN_UNDEF = 0
DT_NEEDED, DT_SONAME = 1, 14


class NotElf(ValueError):
    """The file is not a 64-bit little-endian ELF file, or is truncated."""


@dataclass(frozen=True)
class ElfLibrary:
    """The properties of a library that the loader uses."""

    soname: str
    needed: tuple[str, ...]
    exported: frozenset[str]
    weak: frozenset[str]  # of `exported`: a definition that gives way to one that is not


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def read(path: Path) -> ElfLibrary:
    """Parse the library `path`. Raises NotElf if it is not one, OSError if it is unreadable."""
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
                return _read(image)
        except (ValueError, struct.error) as error:
            raise NotElf(f"{path}: {error}") from error


def _read(image: mmap.mmap) -> ElfLibrary:
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    header = HEADER.unpack_from(image)
    table, entry_bytes, count = header[6], header[11], header[12]
    sections = []
    for number in range(count):
        fields = SECTION.unpack_from(image, table + number * entry_bytes)
        sections.append(_Section(fields[1], fields[4], fields[5], fields[6]))
    entries = [entry for section in sections for entry in _dynamic(image, sections, section)]
    symbols = [symbol for section in sections for symbol in _exported(image, sections, section)]
    return ElfLibrary(
        soname=next((text for tag, text in entries if tag == DT_SONAME), ""),
        needed=tuple(text for tag, text in entries if tag == DT_NEEDED),
        exported=frozenset(name for name, _ in symbols),
        weak=frozenset(name for name, binding in symbols if binding == STB_WEAK),
    )


def _dynamic(
    image: mmap.mmap, sections: list[_Section], section: _Section
) -> Iterator[tuple[int, str]]:
    if section.kind != SHT_DYNAMIC:
        return
    names = sections[section.link]
    for at in range(section.offset, section.offset + section.size, DYNAMIC.size):
        tag, value = DYNAMIC.unpack_from(image, at)
        if tag in {DT_NEEDED, DT_SONAME}:
            yield tag, _text(image, names, value)


def _exported(
    image: mmap.mmap, sections: list[_Section], section: _Section
) -> Iterator[tuple[str, int]]:
    if section.kind != SHT_DYNSYM:
        return
    names = sections[section.link]
    for at in range(section.offset, section.offset + section.size, SYMBOL.size):
        name, bits, _, defined_in, _, _ = SYMBOL.unpack_from(image, at)
        if defined_in != SHN_UNDEF and bits >> 4 in {STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE}:
            yield _text(image, names, name), bits >> 4


def _text(image: mmap.mmap, names: _Section, at: int) -> str:
    start = names.offset + at
    end = image.find(b"\0", start)
    if not names.offset <= start < names.offset + names.size or end < 0:
        raise ValueError("a name lies outside its string table")
    return image[start:end].decode("ascii", "replace")
