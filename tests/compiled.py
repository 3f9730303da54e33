# SPDX-License-Identifier: Apache-2.0
"""Compiles the C programs of tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
STRICT: Final = ("-Wall", "-Wextra", "-Werror")
#: Of the product's own sources, which are free of all of them.
SANITIZED: Final = (
    "-O1",
    *STRICT,
    "-Wconversion",
    "-Wmissing-prototypes",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)


def compile_c(output: Path, *words: str | Path) -> Path:
    """Compile what `words` say into `output`, and return it."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.fail("gcc is not installed: run ./dev setup")
    flags = ("-std=gnu11", "-D_GNU_SOURCE=", "-g", f"-I{ROOT}/libhook/include")
    subprocess.run([compiler, *flags, *map(str, words), "-o", str(output), "-ldl"], check=True)
    return output
