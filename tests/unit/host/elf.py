# SPDX-License-Identifier: Apache-2.0
"""The least that is an ELF file: what a driver's library looks like to a reader of its header."""

from __future__ import annotations

import struct

X86_64 = 62
_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_STRTAB, _SONAME = 5, 14


def library(soname: str, *, machine: int = X86_64) -> bytes:
    """Return a 64-bit shared library with a SONAME."""
    strings = b"\0" + soname.encode() + b"\0"
    table = 64 + 2 * 56
    dynamic = table + len(strings)
    tags = struct.pack("<QQQQQQ", _STRTAB, table, _SONAME, 1, 0, 0)
    size = dynamic + len(tags)
    segments = _segment(_LOAD, 0, size) + _segment(_DYNAMIC, dynamic, len(tags))
    return _header(machine, 2) + segments + strings + tags


def program(loader: str | None, *, machine: int = X86_64) -> bytes:
    """Return a program that `loader` starts; None is a static one."""
    if loader is None:
        return _header(machine, 1) + _segment(_LOAD, 0, 120)
    name = loader.encode() + b"\0"
    offset = 64 + 56
    return _header(machine, 1) + _segment(_INTERP, offset, len(name)) + name


def library_of_32_bit() -> bytes:
    """Return the head of an i386 library."""
    return b"\x7fELF\x01\x01\x01".ljust(16, b"\0") + struct.pack("<HHI", 3, 3, 1).ljust(48, b"\0")


def _header(machine: int, segments: int) -> bytes:
    start = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    return start + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, segments, 0, 0, 0
    )


def _segment(kind: int, offset: int, length: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, 4, offset, offset, offset, length, length, 1)
