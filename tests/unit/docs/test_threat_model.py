# SPDX-License-Identifier: Apache-2.0
"""Each row of the table of threats names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from .markdown import ROOT

PAGE = ROOT / "docs" / "explanation" / "threat-model.md"
ROWS = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_the_page_has_rows() -> None:
    assert len(ROWS) >= 20
    assert all(len(row) == 3 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| ")[:40])
def test_a_threat_names_the_tests_that_try_it(row: list[str]) -> None:
    named = NAMED.findall(row[2])
    assert named, "no test is named"
    assert row[2].count("::") == len(named), "a name is not written as `file::function`"
    for file, function in named:
        assert function in functions(file), f"{file} has no {function}"


def test_every_hostile_test_is_in_the_table() -> None:
    """Except those that support the others."""
    shown = {name for row in ROWS for name in NAMED.findall(row[2])}
    excused = {
        "test_an_honest_image_starts",
        "test_the_witness_sees_every_access",
        "test_a_refused_container_can_be_made_once_there_is_room",
    }
    for path in sorted((ROOT / "tests" / "system" / "hostile").glob("test_*.py")):
        file = str(path.relative_to(ROOT))
        for function in functions(file):
            if function.startswith("test_") and function not in excused:
                assert (file, function) in shown, f"{function} shows no threat of the table"
