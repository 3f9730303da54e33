# SPDX-License-Identifier: Apache-2.0
"""Whatever a command of ./dev starts ends with it, however it ends and however it was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SUPERVISE = [sys.executable, "-m", "tests.supervise", "sh", "-c"]
#: In a session of its own, without a parent, deaf to what ends others.
DAEMON = "setsid sh -c 'trap \"\" INT TERM HUP; echo $$ >daemon; sleep 1000' & "
WAIT = "while [ ! -s daemon ]; do sleep 0.05; done; "

pytestmark = pytest.mark.gate


def supervised(script: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([*SUPERVISE, script], cwd=folder, env=environment, text=True)


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
    assert supervised(DAEMON + WAIT + end, tmp_path).wait(60) == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_the_command_and_then_ends_the_rest(
    tmp_path: Path, daemon: Path, number: signal.Signals
) -> None:
    run = supervised(f"trap 'echo heard >said; exit' INT; {DAEMON} wait", tmp_path)
    try:
        wait_until(lambda: daemon.exists() and bool(daemon.read_text()))
        run.send_signal(number)
        assert run.wait(60) == 128 + number
    finally:
        run.kill()
        run.wait()
    assert (tmp_path / "said").read_text() == "heard\n"
