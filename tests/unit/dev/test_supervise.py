# SPDX-License-Identifier: Apache-2.0
"""Whatever a command started ends with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
SUPERVISE = [sys.executable, "-m", "tests.supervise"]
#: In a session of its own, without a parent, deaf to what ends others.
DAEMON = "setsid sh -c 'trap \"\" INT TERM HUP; echo $$ >daemon; sleep 1000' & "
WAIT = "while [ ! -s daemon ]; do sleep 0.05; done; "


def supervised(script: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*SUPERVISE, "sh", "-c", script], cwd=folder, env=environment, text=True
    )


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """Where the daemon of DAEMON writes its process number."""
    yield tmp_path / "daemon"
    try:
        os.kill(int((tmp_path / "daemon").read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        return
    pytest.fail("the daemon was left")


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(("end", "status"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_the_status_is_the_commands_and_nothing_outlives_it(
    tmp_path: Path, end: str, status: int
) -> None:
    with supervised(DAEMON + WAIT + end, tmp_path) as run:
        assert run.wait(60) == status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_the_command_and_then_ends_the_rest(
    tmp_path: Path, daemon: Path, number: signal.Signals
) -> None:
    with supervised(f"trap 'echo heard >said; exit' INT; {DAEMON} wait", tmp_path) as run:
        wait_until(lambda: daemon.exists() and bool(daemon.read_text()))
        run.send_signal(number)
        assert run.wait(60) == 128 + number
    assert (tmp_path / "said").read_text() == "heard\n"


def test_the_second_signal_kills_a_command_that_takes_its_time(
    tmp_path: Path, daemon: Path
) -> None:
    deaf = "trap 'echo heard >said' INT; "
    with supervised(f"{deaf} {DAEMON} while :; do sleep 0.05; done", tmp_path) as run:
        wait_until(lambda: daemon.exists() and bool(daemon.read_text()))
        run.send_signal(signal.SIGINT)
        wait_until((tmp_path / "said").exists)
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGINT


def test_a_process_that_is_named_ends_it_too(tmp_path: Path, daemon: Path) -> None:
    with (
        subprocess.Popen(["sleep", "1000"]) as other,
        subprocess.Popen(
            [*SUPERVISE, "--until", str(other.pid), "sh", "-c", f"{DAEMON} exec sleep 1000"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as run,
    ):
        wait_until(lambda: daemon.exists() and bool(daemon.read_text()))
        other.kill()
        assert run.wait(60) == 128 + signal.SIGTERM


def test_in_the_background_of_a_script_interrupts_are_not_ignored(tmp_path: Path) -> None:
    """A shell without job control starts background jobs with SIGINT and SIGQUIT ignored."""
    ignored = "grep SigIgn /proc/self/status"
    script = f"{' '.join(SUPERVISE)} {ignored} & wait"
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert not int(done.stdout.split()[1], 16) & (1 << signal.SIGINT - 1 | 1 << signal.SIGQUIT - 1)


#: Has the supervisor go on only when its command has ended.
LATE = """
import os, subprocess, sys
from tests import supervise

class Late(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

subprocess.Popen = Late
sys.exit(supervise.main(["sh", "-c", "exit 3"]))
"""


def test_a_command_that_ends_at_once_is_not_waited_for_without_end() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 3


def test_a_command_that_is_missing_is_named() -> None:
    done = subprocess.run(
        [*SUPERVISE, "no-such-command"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 127
    assert "no-such-command: No such file" in done.stderr


def test_a_test_is_run_with_no_interrupt_ignored() -> None:
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
    assert signal.SIG_IGN not in map(signal.getsignal, numbers)


@pytest.mark.parametrize("workers", ["", "--numprocesses=1"])
def test_so_it_is_where_a_script_starts_pytest_in_the_background(workers: str) -> None:
    test = f"{__file__}::{test_a_test_is_run_with_no_interrupt_ignored.__name__}"
    script = f"{sys.executable} -m pytest -q {workers} {test} & wait $!"
    done = subprocess.run(
        ["sh", "-c", script], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
