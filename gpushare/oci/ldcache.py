# SPDX-License-Identifier: Apache-2.0
"""The loader's cache, /etc/ld.so.cache: bytes in, bytes out.

Read is the format of glibc 2.2 and later, alone or behind the older one (as ldconfig wrote it
before 2.32); written is always the former alone, which every loader since 2.2 reads.
Source: glibc, sysdeps/generic/dl-cache.h and elf/cache.c.

    header   48 bytes: magic, version, entries, bytes of strings, endianness, extension's offset
    entries  24 bytes each: flags, offset of name, offset of path, kernel version, hwcap
    strings
    extension (glibc 2.33): its program, and the names of the glibc-hwcaps folders
"""

from __future__ import annotations

import functools
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

MAX_BYTES: Final = 4 << 20

#: Of a file whose reading may be kept: a distribution's has 30 to 150 KiB, and the rest is an
#: image's word.
KEPT_BYTES: Final = 256 << 10
_MOST_SECTIONS: Final = 64  # glibc writes two
_OLD_MAGIC: Final = b"ld.so-1.7.0"
_OLD_HEADER: Final = 16
_OLD_ENTRY: Final = 12
_MAGIC: Final = b"glibc-ld.so.cache1.1"
_HEADER: Final = struct.Struct("<20sIIB3xI12x")
_ENTRY: Final = struct.Struct("<iIIIQ")
_LITTLE_ENDIAN: Final = 2
_EXTENSION_MAGIC: Final = 0xEAA42174
_SECTION: Final = struct.Struct("<IIII")
_TAG_GENERATOR: Final = 0
_TAG_HWCAPS: Final = 1
_HWCAP_EXTENSION: Final = 1 << 62  # the low half of hwcap is an index into the names
_GENERATOR: Final = b"gpushare"


class LoaderCacheError(ValueError):
    """Bytes that are no loader's cache, or one of an unknown format."""


class LdCacheEntry(NamedTuple):
    """A library: the name programs ask for, and its path. `flags` tell its architecture.

    `hwcaps` is the glibc-hwcaps sub-directory it was found in, None outside of one; `hwcap` the
    processor features that glibc before 2.37 selected by.
    """

    name: bytes
    path: bytes
    flags: int
    os_version: int = 0
    hwcap: int = 0
    hwcaps: bytes | None = None


@dataclass(frozen=True)
class LoaderCache:
    """A cache, its entries in the order that the loader searches."""

    entries: tuple[LdCacheEntry, ...] = ()
    generator: bytes = _GENERATOR

    def with_first(self, wanted: Iterable[tuple[str, str]], flags: int) -> LoaderCache:
        """Return the cache in which each (name, path) of `wanted` is the one library of its name.

        Others of the name and of the architecture `flags` go: the loader would prefer one in a
        glibc-hwcaps sub-directory, and `ldconfig -p` would list both.
        """
        ours = {name.encode(): path.encode() for name, path in wanted}
        kept = [e for e in self.entries if not (e.name in ours and e.flags == flags)]
        for name, path in ours.items():
            entry = LdCacheEntry(name, path, flags)
            kept.insert(_place(kept, entry), entry)
        return replace(self, entries=tuple(kept))


def merge(cache: bytes | None, wanted: Sequence[tuple[str, str]], flags: int) -> bytes:
    """Return the cache with `wanted` first; `cache` itself where that is so already.

    None is an image without a cache: then it has `wanted` alone, and the loader finds the rest
    where it found it before, in its default directories. LoaderCacheError as `parse`, and where the
    result would be over 4 MiB.
    """
    before = LoaderCache() if cache is None else parse(cache)
    after = before.with_first(wanted, flags)
    if cache is not None and after == before:
        return cache
    merged = dump(after)
    if len(merged) > MAX_BYTES:
        raise LoaderCacheError(f"would be over {MAX_BYTES >> 20} MiB with what a GPU needs")
    return merged


def parse(data: bytes) -> LoaderCache:
    """Return the cache that `data` is; LoaderCacheError where the loader would not take it.

    A create looks at an image's cache twice, and a container's start waits for it: what was read is
    kept, but of no file over KEPT_BYTES.
    """
    if len(data) > MAX_BYTES:
        raise LoaderCacheError(f"over {MAX_BYTES >> 20} MiB")
    return _parse_kept(data) if len(data) <= KEPT_BYTES else _parse(data)


@functools.lru_cache(maxsize=8)
def _parse_kept(data: bytes) -> LoaderCache:
    return _parse(data)


def _parse(data: bytes) -> LoaderCache:
    base = _start(data)
    view = data[base:]
    if len(view) < _HEADER.size:
        raise LoaderCacheError("shorter than its header")
    magic, count, _, endianness, extension = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise LoaderCacheError(f"of an unknown format: {magic[:20]!r}")
    if endianness not in (0, _LITTLE_ENDIAN):
        raise LoaderCacheError("of another byte order")
    if _HEADER.size + count * _ENTRY.size > len(view):
        raise LoaderCacheError(f"says {count} libraries and is shorter")
    # The extension's offsets count from the file's start, those of names from the header.
    sections = _sections(data, extension) if extension else {}
    strings = _Read(view)
    hwcaps = [strings.at(offset) for offset in _words(sections.get(_TAG_HWCAPS, b""))]
    entries = tuple(
        _entry(strings, raw, hwcaps)
        for raw in _ENTRY.iter_unpack(view[_HEADER.size : _HEADER.size + count * _ENTRY.size])
    )
    return LoaderCache(entries, sections.get(_TAG_GENERATOR, _GENERATOR))


def _start(data: bytes) -> int:
    """Return where the newer format starts: 0, or behind the older one at a multiple of 8."""
    if not data.startswith(_OLD_MAGIC):
        return 0
    if len(data) < _OLD_HEADER:
        raise LoaderCacheError("shorter than its header")
    (count,) = struct.unpack_from("<I", data, 12)
    return (_OLD_HEADER + int(count) * _OLD_ENTRY + 7) & ~7


def _entry(strings: _Read, raw: tuple[int, ...], hwcaps: Sequence[bytes]) -> LdCacheEntry:
    flags, name, path, os_version, hwcap = raw
    hwcap_set = None
    if hwcap & _HWCAP_EXTENSION:
        index = hwcap & 0xFFFFFFFF
        if index >= len(hwcaps):
            raise LoaderCacheError("names a sub-directory that it does not list")
        hwcap_set, hwcap = hwcaps[index], 0
    return LdCacheEntry(strings.at(name), strings.at(path), flags, os_version, hwcap, hwcap_set)


class _Read:
    """The strings of a cache, as far as they have been read.

    Those of entries may overlap (ldconfig lets a name be the end of its path), so that a file of
    4 MiB could spell out gigabytes. What is read is bounded as the file is.
    """

    def __init__(self, view: bytes) -> None:
        self._view = view
        self._left = MAX_BYTES

    def at(self, offset: int) -> bytes:
        """Return the string at `offset`; a path has at most 4096 bytes (PATH_MAX)."""
        end = self._view.find(b"\0", offset, offset + 4097)
        if end < 0:
            raise LoaderCacheError("has a name that does not end")
        self._left -= end - offset
        if self._left < 0:
            raise LoaderCacheError(f"has names that overlap to over {MAX_BYTES >> 20} MiB")
        return self._view[offset:end]


def _sections(data: bytes, offset: int) -> dict[int, bytes]:
    if offset + 8 > len(data):
        raise LoaderCacheError("has an extension beyond its end")
    magic, count = struct.unpack_from("<II", data, offset)
    if magic != _EXTENSION_MAGIC:
        raise LoaderCacheError("has an unknown extension")
    if count > _MOST_SECTIONS:
        raise LoaderCacheError(f"has an extension of {count} parts")
    if offset + 8 + count * _SECTION.size > len(data):
        raise LoaderCacheError("has an extension beyond its end")
    sections = {}
    for index in range(count):
        tag, _, start, size = _SECTION.unpack_from(data, offset + 8 + index * _SECTION.size)
        if start + size > len(data):
            raise LoaderCacheError("has an extension beyond its end")
        sections[tag] = data[start : start + size]
    return sections


def _words(data: bytes) -> list[int]:
    return [word for (word,) in struct.iter_unpack("<I", data[: len(data) & ~3])]


def dump(cache: LoaderCache) -> bytes:
    """Return the bytes of `cache`."""
    hwcaps = sorted({entry.hwcaps for entry in cache.entries if entry.hwcaps is not None})
    numbers = {name: number for number, name in enumerate(hwcaps)}
    strings = _Strings(_HEADER.size + len(cache.entries) * _ENTRY.size)
    entries = b"".join(
        _ENTRY.pack(
            entry.flags,
            strings.offset(entry.name),
            strings.offset(entry.path),
            entry.os_version,
            entry.hwcap if entry.hwcaps is None else _HWCAP_EXTENSION | numbers[entry.hwcaps],
        )
        for entry in cache.entries
    )
    names = struct.pack(f"<{len(hwcaps)}I", *(strings.offset(name) for name in hwcaps))
    text = bytes(strings.text)
    extension = strings.start + len(text) + -(strings.start + len(text)) % 4
    header = _HEADER.pack(_MAGIC, len(cache.entries), len(text), _LITTLE_ENDIAN, extension)
    body = (header + entries + text).ljust(extension, b"\0")
    return body + _extension(extension, cache.generator, names)


class _Strings:
    """The table of strings, each once; offsets count from the header."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.text = bytearray()
        self._offsets: dict[bytes, int] = {}

    def offset(self, text: bytes) -> int:
        if text not in self._offsets:
            self._offsets[text] = self.start + len(self.text)
            self.text += text + b"\0"
        return self._offsets[text]


def _extension(offset: int, generator: bytes, hwcaps: bytes) -> bytes:
    """Return the extension that starts at `offset`; the names come first, as they need aligning."""
    count = 2 if hwcaps else 1
    data = offset + 8 + count * _SECTION.size
    head = struct.pack("<II", _EXTENSION_MAGIC, count)
    if hwcaps:
        sections = _SECTION.pack(_TAG_GENERATOR, 0, data + len(hwcaps), len(generator))
        sections += _SECTION.pack(_TAG_HWCAPS, 0, data, len(hwcaps))
    else:
        sections = _SECTION.pack(_TAG_GENERATOR, 0, data, len(generator))
    return head + sections + hwcaps + generator


def _place(entries: Sequence[LdCacheEntry], entry: LdCacheEntry) -> int:
    """Return where `entry` goes: before the first of `entries` that does not precede it."""
    return bisect_left(entries, True, key=lambda other: not _precedes(other, entry))


def _precedes(entry: LdCacheEntry, other: LdCacheEntry) -> bool:
    """Whether `entry` stands before `other`.

    The loader searches by halves: names falling, then flags falling (elf/cache.c, compare).
    """
    order = compare_names(entry.name, other.name)
    return order > 0 or (order == 0 and entry.flags > other.flags)


def compare_names(name: bytes, other: bytes) -> int:
    """Return less than, equal to or more than 0, as glibc's _dl_cache_libcmp does.

    Runs of digits compare as numbers, and a digit comes after any other character.
    """
    left, right = name + b"\0", other + b"\0"
    i = j = 0
    while left[i]:
        if _is_digit(left[i]):
            if not _is_digit(right[j]):
                return 1
            first, i = _digits(left, i)
            second, j = _digits(right, j)
            if first != second:
                return first - second
        elif _is_digit(right[j]):
            return -1
        elif left[i] != right[j]:
            return left[i] - right[j]
        else:
            i += 1
            j += 1
    return left[i] - right[j]


def _is_digit(byte: int) -> bool:
    return ord("0") <= byte <= ord("9")


def _digits(text: bytes, start: int) -> tuple[int, int]:
    end = start
    while _is_digit(text[end]):
        end += 1
    return int(text[start:end]), end
