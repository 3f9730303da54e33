# SPDX-License-Identifier: Apache-2.0
"""Every operation of the control socket, broken: it does nothing, and its answer is empty."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from gpushare.protocol.operations import OPERATIONS
from tools.mutation.drawn import Mutation
from tools.mutation.mutate import ROOT

_FILE: Final = Path("gpushare/daemon/service/operations.py")


def operations() -> dict[str, Mutation]:
    """Return by an operation's name the mutation that breaks its function."""
    text = (ROOT / _FILE).read_text(encoding="utf-8")
    functions = {
        node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)
    }
    ops = OPERATIONS.keys() - {"hello"}  # whose answer is empty
    return {op: _emptied(text, functions[op.replace("-", "_")]) for op in sorted(ops)}


def _emptied(text: str, function: ast.FunctionDef) -> Mutation:
    first = function.body[1 if ast.get_docstring(function) else 0]
    before = text.splitlines()[first.lineno - 1].strip()
    return Mutation(
        str(_FILE), first.lineno, before, f"return (), {{}}\n{' ' * first.col_offset}{before}"
    )
