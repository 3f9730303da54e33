# SPDX-License-Identifier: Apache-2.0
"""The entries of an untrusted tar, read forwards, with a bound on everything that a tar can choose.

Python's tarfile reads a header of any size into memory, follows links from member to member, and
takes a negative size for a step back; the author of the archive chooses all of them. Formats: POSIX
pax and ustar, and GNU's long names and sparse files; gzip, bzip2 and xz.
Source: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import bz2
import lzma
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from gpushare.quota.size import format_size

EntryKind: TypeAlias = Literal["file", "hard link", "symlink", "directory", "other"]

BLOCK: Final = 512
CHUNK: Final = 1 << 16
MOST_HEADER_BYTES: Final = 1 << 20  # of a long name, or of pax records; as Go's archive/tar
MOST_UNPACKED_BYTES: Final = 256 << 30
MOST_ENTRIES: Final = 1 << 22
MOST_SECONDS: Final = 300.0
_MOST_XZ_BYTES: Final = 128 << 20  # a dictionary of xz -9 takes 64 MiB

_KINDS: Final[dict[bytes, EntryKind]] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"S": "file",
    b"1": "hard link",
    b"2": "symlink",
    b"5": "directory",
}
_WITHOUT_DATA: Final = frozenset(b"123456")
_COMPRESSED: Final = (
    (b"\x1f\x8b", lambda: zlib.decompressobj(wbits=31)),
    (b"BZh", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\0", lambda: lzma.LZMADecompressor(memlimit=_MOST_XZ_BYTES)),
)
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class ArchiveError(ValueError):
    """The bytes are not a tar that can be read."""


class ArchiveLimit(Exception):
    """Reading an archive would take more than a bound allows."""


@dataclass
class ReadBudget:
    """What reading one image may take, all layers together."""

    unpacked_bytes: int = field(default_factory=lambda: MOST_UNPACKED_BYTES)
    entries: int = field(default_factory=lambda: MOST_ENTRIES)
    until: float = field(default_factory=lambda: time.monotonic() + MOST_SECONDS)

    def spend_bytes(self, size: int) -> None:
        """Count `size` unpacked bytes; ArchiveLimit."""
        self.unpacked_bytes -= size
        if self.unpacked_bytes < 0:
            raise ArchiveLimit(f"it unpacks to more than {format_size(MOST_UNPACKED_BYTES)}")
        self.spend_time()

    def spend_entry(self) -> None:
        """Count a header; ArchiveLimit."""
        self.entries -= 1
        if self.entries < 0:
            raise ArchiveLimit(f"it has more than {MOST_ENTRIES} entries")
        self.spend_time()

    def spend_time(self) -> None:
        """Raise ArchiveLimit if the time is up."""
        if time.monotonic() > self.until:
            raise ArchiveLimit(f"reading it takes longer than {MOST_SECONDS:.0f} s")


class ByteReader:
    """Bytes that are read forwards; `pull` returns at most so many, and none at the end."""

    def __init__(
        self, pull: Callable[[int], bytes], skip: Callable[[int], None] | None = None
    ) -> None:
        self._pull = pull
        self._skip = skip
        self._ahead = b""

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, which stay the next; fewer at the end."""
        while len(self._ahead) < size:
            more = self._pull(CHUNK)
            if not more:
                break
            self._ahead += more
        return self._ahead[:size]

    def some(self, most: int) -> bytes:
        """Return between 1 and `most` bytes; none at the end."""
        if not self._ahead:
            return self._pull(min(most, CHUNK))
        taken, self._ahead = self._ahead[:most], self._ahead[most:]
        return taken

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer at the end."""
        parts = []
        while size and (part := self.some(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def skip(self, size: int) -> None:
        """Leave out `size` bytes; ArchiveError if there are fewer."""
        size -= len(self.some(min(size, len(self._ahead)))) if self._ahead else 0
        if self._skip is not None and size:
            self._skip(size)
            return
        while size:
            part = self.some(size)
            if not part:
                raise ArchiveError("it is truncated")
            size -= len(part)


class Content(ByteReader):
    """The content of one entry, within the reader of its tar."""

    def __init__(self, around: ByteReader, size: int) -> None:
        super().__init__(self._of_around, self._skip_of_around)
        self._around = around
        self.left = size

    def drain(self) -> None:
        """Leave out what was not read."""
        self._ahead = b""
        self._skip_of_around(self.left)

    def _of_around(self, most: int) -> bytes:
        part = self._around.some(min(most, self.left)) if self.left else b""
        if self.left and not part:
            raise ArchiveError("it is truncated")
        self.left -= len(part)
        return part

    def _skip_of_around(self, size: int) -> None:
        if size > self.left:
            raise ArchiveError("it is truncated")
        self.left -= size
        self._around.skip(size)


@dataclass(frozen=True)
class TarEntry:
    """One entry; `content` can be read until the next entry is asked for."""

    name: str
    kind: EntryKind
    target: str  # of a link
    size: int
    content: Content = field(repr=False, compare=False)


def unpack(packed: ByteReader, budget: ReadBudget) -> ByteReader:
    """Return `packed` itself, or what it is the compressed form of; ArchiveError, ArchiveLimit."""
    begin = packed.peek(6)
    if begin.startswith(_ZSTD):
        raise ArchiveError("it is compressed with zstd, which is not supported; use gzip")
    for magic, decoder in _COMPRESSED:
        if begin.startswith(magic):
            return ByteReader(_pull_from(_decompressed(packed, decoder, budget)))
    return packed


def _pull_from(chunks: Iterator[bytes]) -> Callable[[int], bytes]:
    """Return a function that returns the next chunk, and keeps what is more than was asked for."""
    rest = b""

    def pull(most: int) -> bytes:
        nonlocal rest
        rest = rest or next(chunks, b"")
        taken, rest = rest[:most], rest[most:]
        return taken

    return pull


def _decompressed(
    packed: ByteReader, decoder: Callable[[], Any], budget: ReadBudget
) -> Iterator[bytes]:
    """Yield the plain bytes, at most CHUNK at once; several streams in a row are one."""
    current, data = decoder(), packed.some(CHUNK)
    while True:
        try:
            plain = current.decompress(data, CHUNK)
        except (zlib.error, OSError, lzma.LZMAError, EOFError) as error:
            raise ArchiveError(f"its compression is damaged ({error})") from error
        budget.spend_bytes(len(plain))
        if plain:
            yield plain
        if current.eof:
            data = (current.unused_data or packed.some(CHUNK)).lstrip(b"\0")
            if not data:
                return
            current = decoder()
            continue
        data = getattr(current, "unconsumed_tail", b"")
        if not data and len(plain) < CHUNK and getattr(current, "needs_input", True):
            data = packed.some(CHUNK)
            if not data:
                raise ArchiveError("it is truncated")


def tar_entries(tar: ByteReader, budget: ReadBudget) -> Iterator[TarEntry]:
    """Yield the entries of `tar`; ArchiveError, ArchiveLimit."""
    name, target, records = "", "", dict[str, str]()
    first = True
    while True:
        budget.spend_entry()
        header = tar.read(BLOCK)
        if first and len(header) < BLOCK:
            raise ArchiveError("not a tar")
        if not header or header == bytes(BLOCK):
            return
        if len(header) < BLOCK:
            raise ArchiveError("it is truncated")
        if not _sums_up(header):
            raise ArchiveError("not a tar" if first else "a header is damaged")
        first = False
        size, flag = _number(header[124:136]), header[156:157]
        if flag in {b"L", b"K", b"x", b"X", b"g"}:
            data = _extension(tar, size)
            budget.spend_bytes(len(data))
            if flag == b"L":
                name = _text(data)
            elif flag == b"K":
                target = _text(data)
            elif flag != b"g":  # those of all entries have neither names nor sizes
                records |= _pax_records(data)
            continue
        if flag == b"S":
            _skip_sparse_map(tar, header, budget)
        if records.get("size", "").isdecimal():
            size = int(records["size"][:19])
        stored = 0 if flag[0] in _WITHOUT_DATA else size
        content = Content(tar, stored)
        entry = TarEntry(
            records.get("GNU.sparse.name") or records.get("path") or name or _name(header),
            _kind(flag, header),
            records.get("linkpath") or target or _text(header[157:257]),
            stored,
            content,
        )
        name, target, records = "", "", {}
        yield entry
        content.drain()
        tar.skip(-stored % BLOCK)


def _sums_up(header: bytes) -> bool:
    try:
        expected = _number(header[148:156])
    except ArchiveError:
        return False
    blank = header[:148] + b" " * 8 + header[156:]
    return sum(blank) == expected


def _number(digits: bytes) -> int:
    """Return a number in octal digits, or in GNU's binary form; ArchiveError."""
    if digits[0] & 0x80:
        # The bit is the mark; the one after it is the sign.
        number = int.from_bytes(digits, "big") & ((1 << (len(digits) * 8 - 1)) - 1)
        if digits[0] & 0x40 or number >= 1 << 63:
            raise ArchiveError("a header has an impossible size")
        return number
    plain = digits.strip(b" \0").split(b"\0")[0]
    if plain and not all(digit in b"01234567" for digit in plain):
        raise ArchiveError("a header is damaged")
    return int(plain or b"0", 8)


def _extension(tar: ByteReader, size: int) -> bytes:
    if size > MOST_HEADER_BYTES:
        raise ArchiveLimit(f"one of its headers is larger than {format_size(MOST_HEADER_BYTES)}")
    data = tar.read(size)
    if len(data) < size:
        raise ArchiveError("it is truncated")
    tar.skip(-size % BLOCK)
    return data


def _pax_records(data: bytes) -> dict[str, str]:
    """Return the records, each a line `LENGTH KEY=VALUE`; ArchiveError."""
    records, place = {}, 0
    while place < len(data) and data[place]:
        space = data.find(b" ", place, place + 20)
        length = int(data[place:space]) if space > 0 and data[place:space].isdigit() else 0
        end = place + length
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not length or end > len(data) or data[end - 1 : end] != b"\n" or not equals:
            raise ArchiveError("a pax header is damaged")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        place = end
    return records


def _skip_sparse_map(tar: ByteReader, header: bytes, budget: ReadBudget) -> None:
    more = header[482]
    while more:
        budget.spend_entry()
        block = tar.read(BLOCK)
        if len(block) < BLOCK:
            raise ArchiveError("it is truncated")
        more = block[504]


def _kind(flag: bytes, header: bytes) -> EntryKind:
    if flag == b"\0" and _text(header[:100]).endswith("/"):
        return "directory"
    return _KINDS.get(flag, "other")


def _name(header: bytes) -> str:
    name, prefix = _text(header[:100]), _text(header[345:500])
    return f"{prefix}/{name}" if prefix and header[257:262] == b"ustar" else name


def _text(field_bytes: bytes) -> str:
    return field_bytes.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
