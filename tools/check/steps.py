# SPDX-License-Identifier: Apache-2.0
"""The checks, longest first, so that two at a time end together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from . import aarch64, coverage, native, sources, symbols, tidy, trace
from .command import run


@dataclass(frozen=True)
class Step:
    """One check: `run` raises Failure when it does not hold; a report's result is printed.

    `thorough` is what `./dev check --all` has only: what is slow, or needs more set-up.
    """

    name: str
    purpose: str
    run: Callable[[], object]
    is_report: bool = False
    thorough: bool = False


def _python(*arguments: str) -> Callable[[], object]:
    return lambda: run(sys.executable, *arguments)


def site() -> None:
    """Build the documentation; Sphinx keeps what it has read of unchanged pages."""
    places = ("-c", "docs/site", "-d", "build/cache/site", ".", "build/site")
    run("sphinx-build", "-W", "--keep-going", "-q", "-j", "2", *places)


STEPS = (
    Step(
        "aarch64",
        "C for aarch64 builds without a warning, and runs under qemu",
        aarch64.check,
        thorough=True,
    ),
    Step(
        "clang-tidy",
        "C: flaws that compilers do not report",
        tidy.check,
    ),
    Step(
        "asan",
        "C tests under AddressSanitizer and UBSan",
        lambda: native.build_and_test("asan", "address,undefined"),
    ),
    Step(
        "tsan",
        "C tests under ThreadSanitizer",
        lambda: native.build_and_test("tsan", "thread"),
        thorough=True,
    ),
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
    Step("coverage", "every driver function is classified, and handled so", coverage.check),
    Step(
        "reference",
        "docs/reference is what the code says",
        _python("docs/generate.py", "--check"),
    ),
    Step(
        "site",
        "the documentation builds into build/site, and every link leads somewhere",
        site,
        thorough=True,
    ),
    Step(
        "trace",
        "how many modules an operation runs through",
        trace.check,
        is_report=True,
    ),
    Step("imports", "which package may import which", lambda: run("lint-imports", "--no-cache")),
    Step("ruff", "Python: style and common flaws", lambda: run("ruff", "check")),
    Step("format", "Python is laid out by ruff", lambda: run("ruff", "format", "--check")),
    Step("clang-format", "C is laid out by clang-format", native.formatted),
    Step("shellcheck", "shell scripts", lambda: run("shellcheck", *sources.shell_scripts())),
    Step("codespell", "spelling", lambda: run("codespell")),
    Step(
        "symbols",
        "libraries load from glibc 2.17 on, programs are static, both hardened",
        symbols.check,
    ),
)
