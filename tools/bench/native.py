# SPDX-License-Identifier: Apache-2.0
"""Compiles the C programs beside this file."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


#: The name of the variant that is `exec_only`.
FLOOR = "exec only"


def exec_only(runtime: Path, folder: Path) -> Path:
    """Return a program that executes `runtime`, and nothing else."""
    flags = ("-static", f'-DRUNTIME="{runtime}"')
    return compile_program("exec_only.c", folder / "exec_only", *flags)


def compile_program(source: str, output: Path, *flags: str, after: Sequence[str] = ()) -> Path:
    """Compile `source` with gcc to `output` and return it; `after` are libraries that it needs."""
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
            *after,
        ],
        check=True,
    )
    return output
