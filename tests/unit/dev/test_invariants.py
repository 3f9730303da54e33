# SPDX-License-Identifier: Apache-2.0
"""The table of invariants is of this tree; that each line is tested shows `tools.mutation`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tools.mutation.invariants import INVARIANTS, Invariant
from tools.mutation.mutate import ROOT, occurrences


@cache
def functions(file: str) -> frozenset[str]:
    path = ROOT / file
    tree = ast.parse(path.read_text() if path.exists() else "")
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def faults(one: Invariant) -> Iterator[str]:
    if occurrences(one) != 1 or one.mutation == one.snippet:
        yield "its line is not once in the file"
    if not one.tests:
        yield "it has no test"
    for test in one.tests:
        file, _, function = test.partition("::")
        if function not in functions(file):
            yield f"{file} has no {function}"


def test_each_of_twenty_names_a_line_and_tests_that_exist() -> None:
    assert len(INVARIANTS) >= 20
    assert len({one.sentence for one in INVARIANTS}) == len(INVARIANTS)
    found = [f"{one.sentence} {fault}" for one in INVARIANTS for fault in faults(one)]
    assert not found, found
