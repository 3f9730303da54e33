# SPDX-License-Identifier: Apache-2.0
"""Each row of the table of failure modes names tests that exist."""

from __future__ import annotations

import pytest

from .markdown import ROOT
from .test_threat_model import NAMED, functions

PAGE = ROOT / "docs" / "explanation" / "failure-modes.md"
TABLE = PAGE.read_text().partition("## Failures and effects")[2]
ROWS = [line.split(" | ") for line in TABLE.splitlines() if line.startswith("| ")][1:]


def test_the_page_has_rows() -> None:
    assert len(ROWS) >= 20
    assert all(len(row) == 3 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| ")[:40])
def test_a_failure_names_the_tests_that_cause_it(row: list[str]) -> None:
    named = NAMED.findall(row[2])
    assert named, "no test is named"
    assert row[2].count("::") == len(named), "a name is not written as `file::function`"
    for file, function in named:
        assert function in functions(file), f"{file} has no {function}"


def test_every_failure_that_is_caused_is_in_the_table() -> None:
    shown = {name for row in ROWS for name in NAMED.findall(row[2])}
    for path in sorted((ROOT / "tests" / "system" / "faults").glob("test_*.py")):
        file = str(path.relative_to(ROOT))
        for function in functions(file):
            if function.startswith("test_"):
                assert (file, function) in shown, f"{function} shows no failure of the table"
