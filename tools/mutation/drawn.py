# SPDX-License-Identifier: Apache-2.0
"""Tries mutations of single lines: whether a test that executes the line fails for it.

The table of those that were drawn has columns file, line, before, after, and the test that failed
before and after the suite was changed. Each file is changed in the working tree, and
restored whatever happens to this program, short of a SIGKILL.
"""

from __future__ import annotations

import csv
import os
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.mutation.mutate import ROOT, broken, pytest, run

_COLUMNS: Final = ("file", "line", "before", "after", "killed before by", "killed after by")
_SURVIVED: Final = "survived"
#: For the tests of one mutation, the build of its library included.
_SECONDS: Final = 300.0
_C_TESTS: Final = {
    "libhook": ("tests/c/interposer", "tests/c/image"),
    "runtime": ("tests/c/runtime",),
    "scheduler": ("tests/c/scheduler",),
}
_FLAGS: Final = (
    "-std=gnu11",
    "-D_GNU_SOURCE=",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Werror",
    "-Iruntime",
    "-Ilibhook/include",
)
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


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


def try_again(table: Path, database: Path) -> int:
    """Fill the last column of `table`; return how many survive."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        mutation = Mutation(row["file"], int(row["line"]), row["before"], row["after"])
        row[_COLUMNS[-1]] = _try(mutation, database)
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return sum(not row[_COLUMNS[-1]].startswith("tests") for row in rows)


def report(mutations: Mapping[str, Mutation], database: Path) -> int:
    """Try `mutations` and print what became of each, by its name; return how many survive."""
    survived = 0
    for name, mutation in mutations.items():
        verdict = _verdict(mutation, database)
        survived += not verdict.startswith("tests")
        print(f"{name}: {verdict}", flush=True)
    return survived


def _try(mutation: Mutation, database: Path) -> str:
    """Return the test that fails for `mutation`, or why none is known."""
    begun = time.monotonic()
    verdict = _verdict(mutation, database)
    words = f"{mutation.file}:{mutation.line}: {mutation.before} -> {mutation.after}: {verdict}"
    print(words, f"({time.monotonic() - begun:.0f} s)", flush=True)
    return verdict


def _verdict(mutation: Mutation, database: Path) -> str:
    path = ROOT / mutation.file
    try:
        text = mutation.applied(path.read_text(encoding="utf-8"))
    except (LookupError, FileNotFoundError) as gone:
        return f"gone: {gone}"
    chunks = _of_folder(mutation) or _executing(mutation, database)
    with broken(mutation.file, text) as failure:
        failed = failure or not _compiles(mutation.file)
        verdict = "does not build" if failed else _first_failure(chunks)
    if not verdict.startswith("tests"):
        return verdict
    again = _first_failure([[verdict]])
    name, _, _ = verdict.partition("[")
    return name if again == _SURVIVED else f"fails without it: {name}"


def _executing(mutation: Mutation, database: Path) -> list[Sequence[str]]:
    """Return the tests that execute the line, in the order to run them."""
    from coverage.numbits import numbits_to_nums  # noqa: PLC0415 - not in the gate's packages

    at = mutation.place((ROOT / mutation.file).read_text(encoding="utf-8"))
    if at is None:
        return []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as known:
        found = known.execute(
            "select context, numbits from line_bits join file on file.id = file_id"
            " join context on context.id = context_id where path like ? and context != ''",
            (f"%/{mutation.file}",),
        ).fetchall()
    lines = {context: numbits_to_nums(numbits) for context, numbits in found}
    # Those of few lines are small; a test of the system takes seconds.
    tests = sorted(
        (test for test in lines if at + 1 in lines[test]),
        key=lambda test: ("/unit/" not in test, len(lines[test])),
    )
    # Few tests notice most, and the others need not be collected.
    return [tests[:12], tests[12:72], tests[72:]]


def _of_folder(mutation: Mutation) -> list[Sequence[str]]:
    """Return the tests of the folder of C, first those of its file by their names."""
    words = [word[:5] for word in Path(mutation.file).stem.split("_")]
    folders = _C_TESTS.get(mutation.file.partition("/")[0], ())
    tests = [str(path) for folder in folders for path in sorted(Path(folder).glob("test_*.py"))]
    first = [test for test in tests if any(word in Path(test).stem for word in words)]
    return [first, [test for test in tests if test not in first]] if tests else []


def _compiles(file: str) -> bool:
    """Whether a source of C builds with warnings as errors, as tests compile the programs."""
    if not file.endswith(".c") or file.startswith("libhook/"):
        return True
    return not run(["gcc", *_FLAGS, "-c", "-o", os.devnull, file]).returncode


def _first_failure(chunks: Iterable[Sequence[str]]) -> str:
    end = time.monotonic() + _SECONDS
    for tests in filter(None, chunks):
        try:
            done = pytest(tests, end - time.monotonic())
        except subprocess.TimeoutExpired:
            return "no time"
        if done.returncode:
            names = _FAILED.findall(done.stdout)
            return names[0] if names else f"pytest ended with {done.returncode}"
    return _SURVIVED
