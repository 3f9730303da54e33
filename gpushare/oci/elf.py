# SPDX-License-Identifier: Apache-2.0
"""What an ELF file says of itself: its SONAME, its machine, its loader. Source: elf(5)."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

_PT_LOAD: Final = 1
_PT_DYNAMIC: Final = 2
_PT_INTERP: Final = 3
_DT_NULL: Final = 0
_DT_STRTAB: Final = 5
_DT_SONAME: Final = 14
_MOST_SEGMENTS: Final = 64
_MOST_TAGS: Final = 512
_LONGEST_NAME: Final = 256

HEAD_BYTES: Final = 4096  # where linkers put the table of segments and the loader's name


class ElfError(ValueError):
    """A file that is no 64-bit little-endian ELF file, or a damaged one."""


def soname(path: str) -> str | None:
    """Return the SONAME of the library at `path`, None where it has none; ElfError, OSError."""
    with Path(path).open("rb") as file:
        try:
            return _soname(file)
        except (struct.error, UnicodeDecodeError, OverflowError) as error:
            raise ElfError(f"{path} is not a whole ELF file") from error


def machine(path: str) -> int:
    """Return e_machine of the file at `path`; ElfError for a 32-bit one, OSError."""
    with Path(path).open("rb") as file:
        return machine_of(file.read(64), path)


def loader(head: bytes) -> str | None:
    """Return the loader that a program names, by its first HEAD_BYTES; None for a static one.

    ElfError where it is no 64-bit ELF file, or names it further behind.
    """
    machine_of(head)
    table, size, count = struct.unpack_from("<32xQ14xHH", head)
    try:
        for index in range(min(count, _MOST_SEGMENTS)):
            kind, offset, length = struct.unpack_from("<I4xQ16xQ", head, table + index * size)
            if kind == _PT_INTERP:
                name = head[offset : offset + length].rstrip(b"\0")
                if len(name) + 1 < length:
                    raise ElfError("the loader's name lies behind the head")
                return os.fsdecode(name)
    except (struct.error, OverflowError) as error:
        raise ElfError("the table of segments lies behind the head") from error
    return None


def machine_of(header: bytes, what: str = "the program") -> int:
    """Return e_machine by the first 64 bytes of `what`; ElfError as `machine`."""
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        raise ElfError(f"{what} is not a 64-bit little-endian ELF file")
    return int.from_bytes(header[18:20], "little")


def _soname(file: BinaryIO) -> str | None:
    header = file.read(64)
    machine_of(header, file.name)
    table, size, count = struct.unpack_from("<32xQ14xHH", header)
    segments = []
    for index in range(min(count, _MOST_SEGMENTS)):
        raw = _read(file, table + index * size, 56)
        kind, offset, address, length = struct.unpack_from("<I4xQQ8xQ", raw)
        segments.append((kind, offset, address, length))
    names = None
    found = None
    for tag, value in _dynamic(file, segments):
        if tag == _DT_SONAME:
            found = value
        elif tag == _DT_STRTAB:
            names = value
    if found is None or names is None:
        return None
    return _read(file, _offset(names, segments) + found, _LONGEST_NAME).split(b"\0")[0].decode()


def _dynamic(file: BinaryIO, segments: list[tuple[int, int, int, int]]) -> list[tuple[int, int]]:
    tags = []
    for kind, offset, _, length in segments:
        if kind == _PT_DYNAMIC:
            for index in range(min(length // 16, _MOST_TAGS)):
                tag, value = struct.unpack("<QQ", _read(file, offset + index * 16, 16))
                if tag == _DT_NULL:
                    break
                tags.append((tag, value))
    return tags


def _offset(address: int, segments: list[tuple[int, int, int, int]]) -> int:
    for kind, offset, start, length in segments:
        if kind == _PT_LOAD and start <= address < start + length:
            return offset + address - start
    raise ElfError("the string table lies in no segment")


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset, os.SEEK_SET)
    return file.read(size)


@dataclass(frozen=True)
class Platform:
    """One architecture that NVIDIA's driver is made for.

    `multiarch` is Debian's name of it; `cache_flags` marks its libraries in ld.so.cache (glibc,
    sysdeps/generic/ldconfig.h); `loader` is the path of glibc's; `elf_machine` is e_machine of
    its programs (elf(5)).
    """

    machine: str
    multiarch: str
    cache_flags: int
    loader: str
    elf_machine: int

    @property
    def library_directories(self) -> tuple[str, ...]:
        """Where glibc's loader looks by itself: on Debian and its kin, and on the others."""
        return (f"/usr/lib/{self.multiarch}", "/usr/lib64")


_PLATFORMS: Final = {
    platform.machine: platform
    for platform in (
        Platform("x86_64", "x86_64-linux-gnu", 0x0303, "/lib64/ld-linux-x86-64.so.2", 62),
        Platform("aarch64", "aarch64-linux-gnu", 0x0A03, "/lib/ld-linux-aarch64.so.1", 183),
    )
}


def platform_of(machine: str) -> Platform:
    """Return the platform that uname(2) calls `machine`; ValueError where the driver has none."""
    platform = _PLATFORMS.get(machine)
    if platform is None:
        known = ", ".join(sorted(_PLATFORMS))
        raise ValueError(f"gpushare does not run on {machine}: it knows {known}")
    return platform


def this_platform() -> Platform:
    """Return the platform of this machine; ValueError as `platform_of`."""
    return platform_of(os.uname().machine)
