# SPDX-License-Identifier: Apache-2.0
"""Builds the C parts with gcc, plain and with sanitizers, and runs their unit tests."""

from __future__ import annotations

from pathlib import Path

from .command import BUILD, ROOT, Failure, run
from .sources import c_files

# gcc 12's ThreadSanitizer gives up where the kernel randomises more address bits than it knows.
FIXED_ADDRESSES = ("setarch", "--addr-no-randomize")


def configure(name: str, sanitize: str = "") -> Path:
    """Configure build/check/`name` for gcc with `sanitize`, and return it."""
    folder = BUILD / "check" / name
    run(
        "cmake",
        "-S",
        ROOT,
        "-B",
        folder,
        "-G",
        "Ninja",
        "--log-level=WARNING",
        "-DCMAKE_C_COMPILER=gcc",
        "-DGPUSHARE_ZIG=OFF",
        "-DGPUSHARE_WERROR=ON",
        "-DGPUSHARE_TESTS=ON",
        f"-DGPUSHARE_SANITIZE={sanitize}",
        f"-DGPUSHARE_TEST_DRIVER_DIR={folder}/lib/simulator",
    )
    return folder


def build_and_test(name: str, sanitize: str = "") -> None:
    """Build everything with -Werror, or with `sanitize` what is run, and run the C unit tests."""
    folder = configure(name, sanitize)
    what = ("--target", "gpushare-tests") if sanitize else ()
    run("cmake", "--build", folder, "--parallel", "2", *what)
    run(
        *(FIXED_ADDRESSES if sanitize == "thread" and _may_fix_addresses() else ()),
        "ctest",
        "--test-dir",
        folder,
        "--output-on-failure",
        "--no-tests=error",
        env={
            "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "TSAN_OPTIONS": "second_deadlock_stack=1",
        },
    )


def _may_fix_addresses() -> bool:
    """Whether this machine lets a process ask for it; a container's seccomp profile may not."""
    try:
        run(*FIXED_ADDRESSES, "true")
    except Failure:
        return False
    return True


def formatted() -> None:
    """Compare every C file with what clang-format would make of it."""
    paths = c_files()
    if not paths:
        raise Failure("no C file found")
    run("clang-format", "--dry-run", "-Werror", *paths)
