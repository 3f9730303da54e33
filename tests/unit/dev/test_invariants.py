# SPDX-License-Identifier: Apache-2.0
"""The table of invariants is of this tree; that each line is tested shows `tools.mutation`."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tools.mutation.invariants import INVARIANTS, Invariant
from tools.mutation.mutate import ROOT, occurrences


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_there_are_twenty_and_each_has_its_name_and_line() -> None:
    assert len(INVARIANTS) >= 20
    assert len({one.name for one in INVARIANTS}) == len(INVARIANTS)
    assert len({(one.file, one.snippet) for one in INVARIANTS}) == len(INVARIANTS)
    assert all(one.sentence.endswith(".") for one in INVARIANTS)


@pytest.mark.parametrize("one", INVARIANTS, ids=lambda one: one.name)
def test_an_invariant_names_a_line_and_tests_that_exist(one: Invariant) -> None:
    assert occurrences(one) == 1, f"change {one.name} in tools/mutation/invariants.py"
    assert one.mutation != one.snippet
    assert one.tests
    for test in one.tests:
        file, _, function = test.partition("::")
        assert function in functions(file), f"{file} has no {function}"
