# SPDX-License-Identifier: Apache-2.0
"""A run of tests that is interrupted leaves nothing: no process, mount, folder or cgroup."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import leftovers
from tests.system.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PYTEST = [sys.executable, "-m", "pytest", "tests/system/small_run.py"]
SUPERVISED = [sys.executable, "-m", "tests.supervise", *PYTEST]
DEV = ["./dev", "test", PYTEST[-1]]
WORKERS = ["--numprocesses", "1"]


def processes(name: str) -> list[str]:
    """Return the processes that inherited SMALL_RUN=`name`, or have it in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue  # ended meanwhile
            if os.fsencode(name) in words:
                found.append(words.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


@pytest.mark.parametrize(
    ("words", "number", "hit"),
    [
        ([*DEV, *WORKERS], signal.SIGTERM, "the runner"),
        ([*SUPERVISED, *WORKERS], signal.SIGINT, "the session"),
        ([*SUPERVISED, *WORKERS], signal.SIGKILL, "its parent"),
        ([*PYTEST, *WORKERS], signal.SIGINT, "the runner"),
        (PYTEST, signal.SIGTERM, "the runner"),
    ],
    ids=["dev", "terminal", "killed", "pytest-workers", "pytest"],
)
def test_nothing_is_left(
    words: Sequence[str],
    number: signal.Signals,
    hit: str,
    tmp_path: Path,
) -> None:
    ready = tmp_path / "ready"
    outer = ("GPUSHARE_DEV", leftovers.NOTES, "PYTEST_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.Popen(
            [*words, f"--basetemp={tmp_path}/base"],
            cwd=ROOT,
            env={**clean, "SMALL_RUN": str(ready)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_until(lambda: ready.exists() or run.poll() is not None)
        root, mounted, parent = json.loads(ready.read_text())
        if hit == "the session":
            os.killpg(run.pid, number)
        else:
            os.kill(run.pid if hit == "the runner" else parent, number)
        assert run.wait(90) != 0
    finally:
        run.kill()
        run.wait()
        said = (tmp_path / "output").read_text()
    assert not processes(str(ready)), said
    assert not processes(Path(root).name), said
    assert not Path(root).exists(), said
    assert not leftovers.cgroups_named(Path(root).name)
    if "tests.supervise" in words or words[0] == "./dev":
        assert not leftovers.mounts_under(Path(mounted)), said
    else:
        subprocess.run(["umount", mounted], check=True)
