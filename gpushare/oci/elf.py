# SPDX-License-Identifier: Apache-2.0
"""The header of an ELF file: its SONAME, its machine, its loader. Source: elf(5).

By its loader, the program that a container starts with can load the driver, or not. The driver's
libraries, and the interposer library, are made for glibc. musl's loader cannot load them, and into
a static program no loader loads anything.
"""

from __future__ import annotations

import os
import posixpath
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

if TYPE_CHECKING:
    from gpushare.oci.rootfs import Rootfs

ProgramKind = Literal["glibc", "musl", "static", "foreign", "unknown"]

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_SCRIPTS: Final = 4  # the kernel follows as many (BINPRM_MAX_RECURSION is 5, Linux, exec.c)
_GLIBC: Final = re.compile(r"ld-linux[-a-z0-9_]*\.so\.\d+|ld64\.so\.\d+", re.ASCII)
_MUSL: Final = re.compile(r"ld-musl-[a-z0-9_]+\.so\.1", re.ASCII)
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
    soname_offset = None
    for tag, value in _dynamic(file, segments):
        if tag == _DT_SONAME:
            soname_offset = value
        elif tag == _DT_STRTAB:
            names = value
    if soname_offset is None or names is None:
        return None
    return (
        _read(file, _offset(names, segments) + soname_offset, _LONGEST_NAME)
        .split(b"\0")[0]
        .decode()
    )


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


@dataclass(frozen=True)
class Program:
    """A program: its path in the container, and for which loader it is made.

    `foreign` is one of another machine or of 32 bits, `unknown` one that could not be looked at.
    """

    path: str
    kind: ProgramKind


def entry_program(
    rootfs: Rootfs,
    process: tuple[Sequence[str], Mapping[str, str], str],
    platform: Platform,
) -> Program:
    """Return the program of a process: its arguments, its environment, its working directory.

    Nothing of the image is executed. A script is what interprets it; where the image has no such
    program, the loader that the image has tells its kind.
    """
    args, variables, directory = process
    path = _found(rootfs, args[0] if args else "", variables.get("PATH", _PATH), directory)
    for _ in range(_MOST_SCRIPTS):
        if path is None:
            break
        head = rootfs.head(path, HEAD_BYTES) or b""
        if not head.startswith(b"#!"):
            return Program(path, _kind(head, platform))
        words = head[2:].partition(b"\n")[0].split()
        path = words[0].decode(errors="replace") if words else None
    return Program(path or (args[0] if args else ""), _kind_of_image(rootfs, platform))


def _found(rootfs: Rootfs, name: str, search: str, directory: str) -> str | None:
    if "/" in name:
        path = posixpath.join(directory, name)
        return path if rootfs.is_file(path) else None
    folders = [folder for folder in search.split(":") if folder.startswith("/")] if name else []
    return next((f"{f}/{name}" for f in folders if rootfs.is_file(f"{f}/{name}")), None)


def _kind(head: bytes, platform: Platform) -> ProgramKind:
    try:
        if machine_of(head) != platform.elf_machine:
            return "foreign"
        named = loader(head)
    except ElfError:
        return "foreign" if head.startswith(b"\x7fELF") else "unknown"
    if named is None:
        return "static"
    name = posixpath.basename(named)
    if _MUSL.fullmatch(name):
        return "musl"
    return "glibc" if _GLIBC.fullmatch(name) else "unknown"


def _kind_of_image(rootfs: Rootfs, platform: Platform) -> ProgramKind:
    if rootfs.is_file(platform.loader):
        return "glibc"
    musl = f"/lib/ld-musl-{platform.machine}.so.1"
    return "musl" if rootfs.is_file(musl) else "unknown"
