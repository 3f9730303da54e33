# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest

from gpushare.oci import elf


def test_a_program_has_none() -> None:
    assert elf.soname(str(Path(sys.executable).resolve())) is None


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01"])
def test_a_file_that_is_no_library_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    with pytest.raises(elf.ElfError):
        elf.soname(str(path))


def test_a_library_cut_short_is_refused_and_nothing_else_happens(tmp_path: Path) -> None:
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    path = next(path for path in loaded if Path(path).name.startswith("libc.so"))
    whole = Path(path).read_bytes()
    cut = tmp_path / "lib.so"
    for length in (20, 64, 200, 1000, len(whole) // 2):
        cut.write_bytes(whole[:length])
        with pytest.raises(elf.ElfError):
            elf.soname(str(cut))
