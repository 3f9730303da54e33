# SPDX-License-Identifier: Apache-2.0
"""What kind of program a container starts with: whether the driver can be loaded into it at all.

The driver's libraries, and the filters before them, are made for glibc. musl's loader cannot load
them, and into a static program no loader loads anything.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gpushare.oci import elf
from gpushare.oci.elf import Platform
from gpushare.oci.rootfs import Rootfs

ProgramKind = Literal["glibc", "musl", "static", "foreign", "unknown"]

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_SCRIPTS: Final = 4  # the kernel follows as many (BINPRM_MAX_RECURSION is 5, Linux, exec.c)
_GLIBC: Final = re.compile(r"ld-linux[-a-z0-9_]*\.so\.\d+|ld64\.so\.\d+", re.ASCII)
_MUSL: Final = re.compile(r"ld-musl-[a-z0-9_]+\.so\.1", re.ASCII)


@dataclass(frozen=True)
class Program:
    """A program: its path in the container, and for which loader it is made.

    `foreign` is one of another machine or of 32 bits, `unknown` one that could not be looked at.
    """

    path: str
    kind: ProgramKind


def entry(
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
        head = rootfs.head(path, elf.HEAD_BYTES) or b""
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
        if elf.machine_of(head) != platform.elf_machine:
            return "foreign"
        loader = elf.loader(head)
    except elf.ElfError:
        return "foreign" if head.startswith(b"\x7fELF") else "unknown"
    if loader is None:
        return "static"
    name = posixpath.basename(loader)
    if _MUSL.fullmatch(name):
        return "musl"
    return "glibc" if _GLIBC.fullmatch(name) else "unknown"


def _kind_of_image(rootfs: Rootfs, platform: Platform) -> ProgramKind:
    if rootfs.is_file(platform.loader):
        return "glibc"
    musl = f"/lib/ld-musl-{platform.machine}.so.1"
    return "musl" if rootfs.is_file(musl) else "unknown"
