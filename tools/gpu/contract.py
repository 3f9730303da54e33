# SPDX-License-Identifier: Apache-2.0
"""The contract of the driver (tests/c/contract) on this card, and through the interposer library.

The simulator keeps the same contract in the tests: a statement that does not hold here is one that
gpushare takes for granted and must not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.c.contract.cases import NOT_FOR_TENANTS, SEEN_ON, UNSEEN, Case, cases

from . import programs
from .driver import DriverPaths
from .filtered import tenancy
from .process import environment, run
from .report import NotMeasured, ReportRow

LACKS = 77
SECONDS = 60.0


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    program = str(programs.program("contract"))
    for case in cases():
        yield row(case, [program, case.name], environment(driver.env))


def tenant(driver: DriverPaths) -> Iterator[ReportRow]:
    """The same for a tenant of one card, without what a tenant sees otherwise."""
    program = str(programs.program("contract"))
    with tenancy(driver) as made:
        for case in cases():
            if case.cards == 1 and case.name not in NOT_FOR_TENANTS:
                yield row(case, made.command([program, case.name]), made.environment)


def row(case: Case, command: Sequence[str], env: Mapping[str, str]) -> ReportRow:
    """Return whether a case holds; its source is shown where it does not."""
    name = case.name.replace("_", " ")
    try:
        done = run(command, env, SECONDS)
    except NotMeasured as error:
        return ReportRow(name, missing=str(error))
    said = " | ".join(done.stderr.strip().splitlines()[-2:])
    if done.returncode == LACKS:
        return ReportRow(name, missing=said)
    why = said or f"it ended with {done.returncode}"
    known = f"{case.source}; seen on {'no card before' if case.name in UNSEEN else SEEN_ON}"
    return ReportRow.claim(name, done.returncode == 0, f"{why} ({known})")
