# SPDX-License-Identifier: Apache-2.0
"""Compiles the C programs of tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
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


_SHOW = """
#include <stddef.h>
#include <stdio.h>
static void number(unsigned long long value) { printf("%llu\\n", value); }
static void text(const char *value) { puts(value); }
#define SHOW(value) _Generic((value), char *: text, default: number)(value);
int main(void)
{
"""


def figures(folder: Path, header: Path, expressions: Mapping[str, str]) -> dict[str, int | str]:
    """Return what C makes of each of the expressions behind a header."""
    source = folder / "figures.c"
    lines = [f"SHOW({expression})" for expression in expressions.values()]
    source.write_text(f'#include "{header}"\n{_SHOW}' + "\n".join(lines) + "\n}\n")
    program = compile_c(folder / "figures", "-Wall", source)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    values = [int(line) if line.isdigit() else line for line in printed.splitlines()]
    return dict(zip(expressions, values, strict=True))
