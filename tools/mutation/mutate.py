# SPDX-License-Identifier: Apache-2.0
"""Breaks a line that upholds an invariant, and runs the tests that must fail for it.

The line is changed in the working tree, and restored whatever happens to this program, short of a
SIGKILL; then git shows the file as changed, and the next run refuses to touch it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from gpushare.simulator import device_file
from tools.mutation.invariants import Invariant

ROOT: Final = Path(__file__).resolve().parents[2]
_BUILD: Final = ROOT / "build" / "cmake"
#: The only C code that tests do not compile for themselves.
_LIBRARIES: Final = {
    "cuda-filter": "libcuda.so.1",
    "cuda-filter-host": "host/libcuda.so.1",
    "nvml-filter": "libnvidia-ml.so.1",
    "nvml-filter-host": "host/libnvidia-ml.so.1",
}
_TESTS_FAILED: Final = 1  # pytest's exit status; others mean that no test has judged
_SECONDS: Final = 600.0  # for one command, on a machine with much else to do
_SHOWN: Final = 2000  # characters of what a program printed last


def report(table: Sequence[Invariant], words: Sequence[str], tell: Callable[[str], None]) -> int:
    """Break those of `table` whose sentences have one of `words`; 1: a test did not notice."""
    chosen = [one for one in table if not words or any(word in one.sentence for word in words)]
    if not chosen:
        _stop(f"no sentence has {' or '.join(words)}")
    files = {one.file for one in chosen}
    changed = run(["git", "status", "--porcelain", "--", *sorted(files)]).stdout
    if changed.strip():
        _stop(f"these have changes of yours, which would be lost:\n{changed}")
    tests = list(dict.fromkeys(test for one in chosen for test in one.tests))
    done = pytest(tests)
    if done.returncode:
        _stop(f"the tests fail before anything is broken:\n{done.stdout.strip()[-_SHOWN:]}")
    tell(f"{len(tests)} tests pass as it is")
    missed = 0
    for one in chosen:
        found = _try(one)
        missed += found != "caught"
        print(f"{one.sentence} {found}", flush=True)
        tell(one.sentence)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0


def occurrences(one: Invariant) -> int:
    """Return how often the snippet of `one` is in its file."""
    try:
        return (ROOT / one.file).read_text(encoding="utf-8").count(one.snippet)
    except FileNotFoundError:
        return 0


def _try(one: Invariant) -> str:
    found = occurrences(one)
    if found != 1:
        return f"SNIPPET FOUND {found} TIMES in {one.file}: {one.snippet!r}"
    text = (ROOT / one.file).read_text(encoding="utf-8")
    with broken(one.file, text.replace(one.snippet, one.mutation)) as failure:
        if failure:
            return f"DOES NOT BUILD: {failure}"
        try:
            done = pytest(one.tests)
        except subprocess.TimeoutExpired:
            return "TESTS TOOK TOO LONG"
    if done.returncode == _TESTS_FAILED:
        return "caught"
    if done.returncode:
        return f"TESTS ENDED WITH STATUS {done.returncode}:\n{done.stdout.strip()[-_SHOWN:]}"
    return f"NOT CAUGHT by {', '.join(one.tests)}"


@contextmanager
def broken(file: str, text: str) -> Iterator[str]:
    """Have `file` with another text, and the libraries with it; yield why they do not build."""
    path = ROOT / file
    before = path.read_bytes()
    try:
        path.write_text(text, encoding="utf-8")
        yield _build(file)
    finally:
        path.write_bytes(before)
        _build(file)


def _build(file: str) -> str:
    """Build what tests of `file` do not compile themselves; return why not, or nothing."""
    if not file.startswith("libhook/"):
        return ""
    cmake = Path(sys.executable).with_name("cmake")
    done = run([str(cmake), "--build", str(_BUILD), "--target", *_LIBRARIES])
    if done.returncode:
        return done.stdout.strip()[-_SHOWN:]
    for name in _LIBRARIES.values():
        # A process may have the old one mapped.
        installed = device_file.libraries().parent / name
        draft = shutil.copy2(_BUILD / "lib" / name, installed.with_name(f".{installed.name}"))
        Path(draft).replace(installed)
    return ""


def pytest(tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run tests until one fails."""
    return run([sys.executable, "-m", "pytest", "-x", "-q", "-n0", "--tb=short", *tests])


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, and end all of it where this program ends, or with TimeoutExpired."""
    # No bytecode of what is broken may be left for later runs.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            output, _ = running.communicate(timeout=_SECONDS)
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, running.returncode, output)


def _stop(message: str) -> NoReturn:
    raise SystemExit(f"mutation: {message}")
