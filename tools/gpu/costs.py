# SPDX-License-Identifier: Apache-2.0
"""What a launch, an allocation and a look at memory cost, through the filter and without it.

The program is that of `./dev bench`, on the real driver: bare and filtered calls take turns in one
process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpushare.host import mounts
from gpushare.host.driver import CUDA

from . import programs
from .driver import DriverPaths
from .filtered import tenancy
from .process import run
from .report import NotMeasured, ReportRow
from .tenancy import Tenancy

ROUNDS = 200
CALLS = {
    "launch": "launch of an empty kernel",
    "allocate": "allocation and free of 1 MiB",
    "information": "cuMemGetInfo",
}


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    program = programs.program("calls")
    with tenancy(driver) as tenant:
        for call, what in CALLS.items():
            bare, filtered, added = timed(program, call, tenant)
            yield ReportRow(f"{what}: bare", bare, "ns", "median of rounds")
            ratio = f"{filtered / bare:.3f} times the bare call"
            yield ReportRow(f"{what}: the filter adds", added, "ns", ratio)


def timed(program: Path, call: str, tenant: Tenancy) -> tuple[float, float, float]:
    """Return ns for one call: bare, filtered, and the difference (medians of rounds)."""
    filter_, real = f"{mounts.FILTERS}/{CUDA}", f"{mounts.DRIVER}/{CUDA}"
    command = tenant.command([str(program), call, filter_, real, str(ROUNDS)])
    done = run(command, tenant.environment)
    try:
        bare, filtered, added = map(float, done.stdout.split())
    except ValueError as error:
        raise NotMeasured(f"{call}: {done.stderr.strip() or done.stdout!r}") from error
    return bare, filtered, added
