# SPDX-License-Identifier: Apache-2.0
"""Breaks a line that upholds an invariant, and runs the tests that must fail for it.

The line is changed in the working tree, and restored whatever happens to this program, short of a
SIGKILL; then git shows the file as changed, and the next run refuses to touch it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from gpushare import simulator
from tools.mutation.invariants import INVARIANTS, Invariant

ROOT: Final = Path(__file__).resolve().parents[2]
#: The only C code that tests do not compile for themselves.
_LIBRARY_SOURCES: Final = "libhook/"
_LIBRARY_TARGET: Final = "cuda-filter"
_LIBRARY: Final = "libcuda.so.1"
_BUILD: Final = ROOT / "build" / "cmake"
_TESTS_FAILED: Final = 1  # pytest's exit status; others mean that no test has judged
_SECONDS: Final = 600.0  # for one command, on a machine with much else to do
_SHOWN: Final = 2000  # characters of what a program printed last


def report(names: Sequence[str], tell: Callable[[str], None]) -> int:
    """Break the invariants called `names`, all where there are none; 1: a test did not notice."""
    chosen = [one for one in INVARIANTS if not names or one.name in names]
    unknown = set(names) - {one.name for one in chosen}
    if unknown:
        _stop(f"no invariant is called {', '.join(sorted(unknown))}")
    _refuse_changed({one.file for one in chosen})
    tests = list(dict.fromkeys(test for one in chosen for test in one.tests))
    done = _pytest(tests)
    if done.returncode:
        _stop(f"the tests fail before anything is broken:\n{_end_of(done)}")
    tell(f"{len(tests)} tests pass as it is")
    missed = 0
    for one in chosen:
        found = _try(one)
        missed += found != "caught"
        print(f"{one.name}: {found}", flush=True)
        tell(one.name)
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
    with _libraries(one), _broken(one):
        failure = _build(one)
        if failure:
            return f"DOES NOT BUILD: {failure}"
        done = _pytest(one.tests)
    if done.returncode == _TESTS_FAILED:
        return "caught"
    if done.returncode:
        return f"TESTS ENDED WITH STATUS {done.returncode}:\n{_end_of(done)}"
    return f"NOT CAUGHT by {', '.join(one.tests)}"


@contextlib.contextmanager
def _broken(one: Invariant) -> Iterator[None]:
    path = ROOT / one.file
    before = path.read_bytes()
    try:
        path.write_text(before.decode().replace(one.snippet, one.mutation), encoding="utf-8")
        yield
    finally:
        path.write_bytes(before)


@contextlib.contextmanager
def _libraries(one: Invariant) -> Iterator[None]:
    """Keep the library as it is installed, and build it again from what is restored."""
    if not one.file.startswith(_LIBRARY_SOURCES):
        yield
        return
    installed = simulator.libraries().parent / _LIBRARY
    with tempfile.TemporaryDirectory(prefix="gpushare-mutation-") as place:
        kept = shutil.copy2(installed, place)
        try:
            yield
        finally:
            _put(Path(kept), installed)
            _cmake()


def _build(one: Invariant) -> str:
    """Build what the tests of `one` do not compile themselves; return why not, or nothing."""
    if not one.file.startswith(_LIBRARY_SOURCES):
        return ""
    done = _cmake()
    if done.returncode:
        return _end_of(done)
    _put(_BUILD / "lib" / _LIBRARY, simulator.libraries().parent / _LIBRARY)
    return ""


def _put(source: Path, target: Path) -> None:
    """Put a copy of `source` in the place of `target`, which a process may have mapped."""
    draft = target.with_name(f".{target.name}")
    shutil.copy2(source, draft)
    draft.replace(target)


def _cmake() -> subprocess.CompletedProcess[str]:
    cmake = Path(sys.executable).with_name("cmake")
    return _run(str(cmake), "--build", str(_BUILD), "--target", _LIBRARY_TARGET)


def _pytest(tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return _run(sys.executable, "-m", "pytest", "-x", "-q", *tests)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    # No bytecode of what is broken may be left for later runs.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        try:
            output, _ = running.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            running.terminate()
            output, _ = running.communicate()
        except BaseException:
            running.terminate()  # pytest ends what its tests have started
            raise
    return subprocess.CompletedProcess(command, running.returncode, output)


def _refuse_changed(files: set[str]) -> None:
    done = _run("git", "status", "--porcelain", "--", *sorted(files))
    if done.returncode or done.stdout:
        _stop(f"these files are changed; commit or restore them first:\n{done.stdout}")


def _end_of(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout[-_SHOWN:].strip()


def _stop(why: str) -> NoReturn:
    sys.exit(f"mutation: {why}")
