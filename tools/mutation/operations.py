# SPDX-License-Identifier: Apache-2.0
"""Every operation of the control socket, broken: it does nothing, and its answer is empty."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.mutation.drawn import Mutation
from tools.mutation.mutate import ROOT

_SERVICE: Final = Path("gpushare/daemon/service")


def operations() -> dict[str, Mutation]:
    """Return by an operation's name the mutation that breaks its function."""
    trees = {
        path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / _SERVICE).glob("*_operation*.py"))
    }
    found = {}
    for here, tree in trees.items():
        for name, function in _named(tree):
            for file in (here, *trees):
                if body := _body(trees[file], function):
                    found[name] = _emptied(file, body)
                    break
    return found


def _named(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the operations' names, and those of their functions."""
    for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
        for key, value in zip(table.keys, table.values, strict=True):
            if ast.unparse(value).startswith("Operation("):
                assert isinstance(key, ast.Constant)
                assert isinstance(value, ast.Call)
                yield str(key.value), ast.unparse(value.args[0]).rpartition(".")[2]


def _body(tree: ast.Module, function: str) -> list[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return node.body[1:] if ast.get_docstring(node) else node.body
    return []


def _emptied(file: Path, body: list[ast.stmt]) -> Mutation:
    first = body[0]
    before = (ROOT / file).read_text(encoding="utf-8").splitlines()[first.lineno - 1].strip()
    return Mutation(
        str(file), first.lineno, before, f"return (), {{}}\n{' ' * first.col_offset}{before}"
    )
