# SPDX-License-Identifier: Apache-2.0
"""`./dev gpu pack [--python 3.12]`: gather what a machine with a card, but no network, lacks.

It lies in build/carried: gpushare's wheel and those it needs, the C programs, and the packages of
runc, its library and busybox. What is over the limits on what a lent machine takes is refused.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from . import programs
from .report import NotMeasured

ROOT = Path(__file__).resolve().parents[2]
CARRIED = ROOT / "build" / "carried"
WHEELS = ROOT / "build" / "dist"
PACKAGES = ("runc", "libseccomp2", "busybox-static")
PLATFORMS = ("manylinux_2_17", "manylinux2014", "manylinux1")
MIB = 1 << 20
CARRIED_MOST, ALL_MOST = 45 * MIB, 64 * MIB
RUN = "sh tools/gpu/carried.sh build/carried all --seconds 480 --out $OUT/measured.md"


class PackError(Exception):
    """What travels cannot be made, or is too much; the message says which."""


class PackSizes(NamedTuple):
    """Bytes: of what was made, and of the files that Git has."""

    made: int
    tracked: int


def pack(python: str) -> PackSizes:
    """Make build/carried for a machine with this version of Python; PackError."""
    shutil.rmtree(CARRIED, ignore_errors=True)
    CARRIED.mkdir(parents=True)
    wheels = WHEELS.glob(f"gpushare_runtime-*_{platform.machine()}.whl")
    wheel = max(wheels, key=lambda path: path.stat().st_mtime)
    tags = [f"--platform={name}_{platform.machine()}" for name in PLATFORMS]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", *tags]
    _run([*command, f"--python-version={python}", "--dest", str(CARRIED), str(wheel), "pip"])
    _run(["apt-get", "download", *PACKAGES])
    for name in programs.PROGRAMS:
        programs.make(name, CARRIED / "programs" / programs.file_name(name), programs.portable())
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return PackSizes(_bytes(CARRIED.rglob("*")), _bytes(ROOT / name for name in names if name))


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=CARRIED, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")


def _bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def refusal(sizes: PackSizes) -> str:
    """Return why so much does not travel, "" if it does."""
    for size, most, what in (
        (sizes.made, CARRIED_MOST, str(CARRIED.relative_to(ROOT))),
        (sum(sizes), ALL_MOST, "what travels"),
    ):
        if size > most:
            return f"{what} is {size / MIB:.1f} MiB, more than {most // MIB} MiB"
    return ""


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev gpu pack")
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="that machine's Python")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    try:
        sizes = pack(options.python)
    except (PackError, NotMeasured) as error:
        sys.stderr.write(f"gpu pack: {error}\n")
        return 1
    sys.stdout.write(
        f"build/carried: {sizes.made / MIB:.1f} MiB, tracked files: {sizes.tracked / MIB:.1f} MiB\n"
    )
    if why := refusal(sizes):
        sys.stderr.write(f"gpu pack: {why}\n")
        return 1
    sys.stdout.write(f"Carry build/carried there, and run in the checkout, as root:\n\n    {RUN}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
