# SPDX-License-Identifier: Apache-2.0
"""Draws one-line mutations of the product's sources, the same for the same seed and sources."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
#: How many mutations that a test fails for are wanted of each part.
WANTED: Final = {
    "gpushare/daemon": 24,
    "gpushare/quota": 8,
    "gpushare/oci": 8,
    "libhook": 10,
    "runtime": 5,
    "scheduler": 5,
}
_MOST_OF_A_FILE: Final = 2
_SWAPPED: Final = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "in": "not in",
    "not in": "in",
    "is": "is not",
    "is not": "is",
    "and": "or",
    "or": "and",
    "+": "-",
    "-": "+",
    "&&": "||",
    "||": "&&",
    "true": "false",
    "false": "true",
}
_C_OPERATOR: Final = re.compile(r" (<|<=|>|>=|==|!=|\+|-|&&|\|\|) ")
_C_NUMBER: Final = re.compile(r"(?<![\w.])(\d+)(?=[);,\]])")
_C_TRUTH: Final = re.compile(r"\b(true|false)\b")
_C_CALL: Final = re.compile(r"\t+([a-z]\w*\([^{}]*\);)")
_C_IF: Final = re.compile(r"\bif \((.*)\)( \{)?")


@dataclass(frozen=True)
class Mutation:
    """A line of a file, and what takes its place."""

    file: str
    line: int
    before: str
    after: str

    def place(self, text: str) -> int | None:
        """Return the index of the line in `text`: of those that read the same, the nearest."""
        found = [at for at, line in enumerate(text.splitlines()) if line.strip() == self.before]
        return min(found, key=lambda at: abs(at + 1 - self.line), default=None)

    def applied(self, text: str) -> str:
        """Return `text` with the mutation.

        Raises:
            LookupError: `text` has no such line.
        """
        at = self.place(text)
        if at is None:
            raise LookupError(f"{self.file} has no line {self.before!r}")
        lines = text.splitlines(keepends=True)
        lines[at] = lines[at].replace(self.before, self.after)
        return "".join(lines)


def draw(part: str, seed: int) -> list[Mutation]:
    """Return the mutations of the sources of `part` in the order of `seed`, two of a file at most.

    Every line with mutations is as likely as every other.
    """
    lines = []
    for path in sorted((ROOT / part).rglob("*.py" if part.startswith("gpushare") else "*.c")):
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        changes = _python(text) if path.suffix == ".py" else _c(text)
        by_line: dict[int, list[str]] = {}
        for number, after in changes:
            by_line.setdefault(number, []).append(after)
        written = text.splitlines()
        lines += [(name, at, written[at - 1], afters) for at, afters in sorted(by_line.items())]
    generator = random.Random(f"{seed} {part}")
    generator.shuffle(lines)
    of_file: Counter[str] = Counter()
    found = []
    for name, number, before, afters in lines:
        of_file[name] += 1
        after = generator.choice(sorted(afters))
        mutation = Mutation(name, number, before.strip(), after.strip())
        if of_file[name] <= _MOST_OF_A_FILE and _is_code(mutation):
            found.append(mutation)
    return found


def _is_code(mutation: Mutation) -> bool:
    """Whether Python can read the file with it; a compiler says so of C."""
    try:
        return bool(ast.parse(mutation.applied((ROOT / mutation.file).read_text(encoding="utf-8"))))
    except SyntaxError:
        return not mutation.file.endswith(".py")


def _python(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    tree = ast.parse(text)
    hints = {
        id(inner)
        for node in ast.walk(tree)
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if hint
        for inner in ast.walk(hint)
    }
    for node in ast.walk(tree):
        part = node.test if isinstance(node, ast.If) else node
        if not isinstance(part, (ast.expr, ast.stmt)) or id(node) in hints:
            continue
        line = lines[part.lineno - 1]
        if part.lineno == part.end_lineno and line.isascii():  # columns are of bytes
            for begin, end, after in _replaced(line, node):
                yield part.lineno, line[:begin] + after + line[end:]


def _replaced(line: str, node: ast.AST) -> Iterator[tuple[int, int, str]]:
    """Yield the columns of the part of `line` that changes, and what takes its place."""
    match node:
        case ast.Compare(left=left, comparators=[right]) | ast.BoolOp(values=[left, right, *_]):
            yield from _operator(line, left, right)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            yield from _operator(line, left, right)
        case ast.If(test=test) if line.lstrip().startswith("if ") and line.endswith(":"):
            begin, end = test.col_offset, test.end_col_offset or 0
            yield begin, end, f"not ({line[begin:end]})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node.col_offset, operand.col_offset, ""
        case ast.Constant(value=bool(value)):
            yield node.col_offset, node.end_col_offset or 0, str(not value)
        case ast.Constant(value=int(value)):
            yield node.col_offset, node.end_col_offset or 0, str(value + 1)
        case ast.Expr(value=ast.Call()):
            yield node.col_offset, node.end_col_offset or 0, "pass"


def _operator(line: str, left: ast.expr, right: ast.expr) -> Iterator[tuple[int, int, str]]:
    begin = left.end_col_offset or 0
    between = line[begin : right.col_offset]
    operator = between.strip(" ()")
    if operator in _SWAPPED:
        yield begin, right.col_offset, between.replace(operator, _SWAPPED[operator])


def _c(text: str) -> Iterator[tuple[int, str]]:
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        inside = inside or stripped.startswith("/*")
        if not inside and line.startswith("\t") and not stripped.startswith(("//", "#", '"')):
            yield from ((number, after) for after in _c_line(line.partition(" /*")[0]))
        inside = inside and "*/" not in stripped


def _c_line(line: str) -> Iterator[str]:
    for pattern in (_C_OPERATOR, _C_NUMBER, _C_TRUTH):
        for found in pattern.finditer(line):
            word = found[1]
            after = _SWAPPED.get(word) or str(int(word) + 1)
            yield line[: found.start(1)] + after + line[found.end(1) :]
    if call := _C_CALL.fullmatch(line):
        yield line.replace(call[1], ";")
    if (test := _C_IF.search(line)) and test[1].count("(") == test[1].count(")"):
        yield line[: test.start(1)] + f"!({test[1]})" + line[test.end(1) :]
