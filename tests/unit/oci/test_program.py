# SPDX-License-Identifier: Apache-2.0
"""What ELF files say: a library's name, and whether a container's program can load the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.oci import elf as oci_elf
from gpushare.oci.elf import Program, ProgramKind, entry_program, platform_of
from gpushare.oci.rootfs import Rootfs
from tests.unit.host import elf

PLATFORM = platform_of("x86_64")
GLIBC, MUSL = "/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"
AARCH64 = 183


def entry(rootfs: Rootfs, *args: str, path: str = "/bin", directory: str = "/") -> Program:
    return entry_program(rootfs, (args, {"PATH": path}, directory), PLATFORM)


def install(root: Path, path: str, content: bytes) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (elf.program(GLIBC), "glibc"),
        (elf.program(MUSL), "musl"),
        (elf.program(None), "static"),
        (elf.program("/opt/ld.so"), "unknown"),
        (elf.program(GLIBC, machine=AARCH64), "foreign"),
        (elf.library_of_32_bit(), "foreign"),
        (b"\x7fELF", "foreign"),
        (b"", "unknown"),
        (elf.program(GLIBC)[:70], "foreign"),
        (elf.program("/" + "a" * oci_elf.HEAD_BYTES), "foreign"),
    ],
)
def test_a_program_names_its_loader(
    content: bytes, kind: ProgramKind, root: Path, rootfs: Rootfs
) -> None:
    install(root, "/bin/app", content)
    assert entry(rootfs, "app") == Program("/bin/app", kind)


def test_a_script_has_the_loader_of_its_interpreter(root: Path, rootfs: Rootfs) -> None:
    install(root, "/app/run.sh", b"#! /bin/sh -e\necho\n")
    install(root, "/bin/busybox", elf.program(MUSL))
    (root / "bin/sh").symlink_to("/bin/busybox")
    assert entry(rootfs, "./run.sh", directory="/app").kind == "musl"


def test_scripts_that_interpret_each_other_end(root: Path, rootfs: Rootfs) -> None:
    install(root, "/bin/a", b"#!/bin/b\n")
    install(root, "/bin/b", b"#!/bin/a\n")
    assert entry(rootfs, "a").kind == "unknown"


def test_without_the_program_the_image_decides(root: Path, rootfs: Rootfs) -> None:
    install(root, MUSL, b"loader")
    assert entry(rootfs, "/gone") == Program("/gone", "musl")
    install(root, GLIBC, b"loader")
    assert entry(rootfs).kind == "glibc"


def test_a_library_cut_short_is_refused_and_nothing_else_happens(tmp_path: Path) -> None:
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    path = next(path for path in loaded if Path(path).name.startswith("libc.so"))
    whole = Path(path).read_bytes()
    cut = tmp_path / "lib.so"
    for length in (20, 64, 200, 1000, len(whole) // 2):
        cut.write_bytes(whole[:length])
        with pytest.raises(oci_elf.ElfError):
            oci_elf.soname(str(cut))
