# SPDX-License-Identifier: Apache-2.0
import ctypes.util
from pathlib import Path

from gpushare.oci import elf


def test_the_soname_of_libc_is_the_name_programs_ask_for() -> None:
    name = ctypes.util.find_library("c")
    assert name is not None
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    path = next(path for path in loaded if Path(path).name.startswith("libc.so"))
    assert elf.soname(path) == name
