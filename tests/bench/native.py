# SPDX-License-Identifier: Apache-2.0
"""Compiles the C programs beside this file."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def compile_program(source: str, output: Path, *flags: str) -> Path:
    """Compile `source` with gcc to `output` and return it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    include = f"-I{ROOT}/libhook/include"
    subprocess.run(
        [
            "gcc",
            "-std=gnu11",
            "-O2",
            include,
            *flags,
            str(HERE / source),
            "-o",
            str(output),
            "-ldl",
        ],
        check=True,
    )
    return output
