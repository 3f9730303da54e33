# SPDX-License-Identifier: Apache-2.0
"""The checks, longest first, so that two at a time end together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from . import aarch64, doors, native, sources, symbols
from .command import run


@dataclass(frozen=True)
class Step:
    """One check: `run` raises Failure when it does not hold."""

    name: str
    purpose: str
    run: Callable[[], object]


def _python(*arguments: str) -> Callable[[], object]:
    return lambda: run(sys.executable, *arguments)


STEPS = (
    Step(
        "aarch64",
        "C for aarch64 builds without a warning, and runs under qemu",
        aarch64.check,
    ),
    Step("clang-tidy", "C: flaws that compilers do not report", native.tidy),
    Step(
        "asan",
        "C tests under AddressSanitizer and UBSan",
        lambda: native.build_and_test("asan", "address,undefined"),
    ),
    Step("tsan", "C tests under ThreadSanitizer", lambda: native.build_and_test("tsan", "thread")),
    Step(
        "gcc",
        "C builds without a warning, and its tests pass",
        lambda: native.build_and_test("gcc"),
    ),
    Step(
        "table",
        "the committed symbol tables are what NVIDIA's headers give",
        _python("libhook/table/generate.py", "--check"),
    ),
    Step("mypy", "Python types, strictly", _python("-m", "mypy")),
    Step("doors", "every call of the driver is classified, and treated so", doors.check),
    Step(
        "abi",
        "gpushare_abi.h and abi.py describe the same pages",
        _python("-m", "pytest", "-q", "tests/unit/test_abi_parity.py"),
    ),
    Step(
        "reference",
        "docs/reference is what the code says",
        _python("docs/generate.py", "--check"),
    ),
    Step("imports", "who may import whom", lambda: run("lint-imports", "--no-cache")),
    Step("ruff", "Python: style and common flaws", lambda: run("ruff", "check")),
    Step("format", "Python is laid out by ruff", lambda: run("ruff", "format", "--check")),
    Step("clang-format", "C is laid out by clang-format", native.formatted),
    Step("shellcheck", "shell scripts", lambda: run("shellcheck", *sources.shell_scripts())),
    Step("codespell", "spelling", lambda: run("codespell")),
    Step("symbols", "libraries load from glibc 2.17 on, programs are static", symbols.check),
)
