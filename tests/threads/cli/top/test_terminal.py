# SPDX-License-Identifier: Apache-2.0
"""`gpushare top` on a terminal: keys, sizes, signals, and how it is left."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.errors import ErrorCode
from tests.emulator import Emulator
from tests.unit.cli.fake_daemon import AnsweringDaemon, refusal

Start = Callable[..., Emulator]


SHOW_CURSOR = b"\x1b[?25h"
HIDE_CURSOR = b"\x1b[?25l"
PROGRAM = [sys.executable, "-m", "gpushare.cli", "top", "--interval", "0.2"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `gpushare top` on a terminal, against the socket in this test's folder."""
    started: list[Emulator] = []

    def begin(
        *words: str,
        program: list[str] | None = None,
        columns: int = 80,
        lines: int = 24,
        **env: str,
    ) -> Emulator:
        argv = [*(program or PROGRAM), *words]
        plain = {"GPUSHARE_SOCKET": str(tmp_path / "control.sock"), "LC_ALL": "C.UTF-8"}
        started.append(Emulator(argv, {**plain, **env}, columns=columns, lines=lines))
        return started[-1]

    yield begin
    for one in started:
        with one:
            one.terminate()


def shown(screen: str) -> bool:
    return "train" in screen and "q quit" in screen


@pytest.mark.usefixtures("daemon")
def test_keys_arrive_one_by_one_and_together(start: Start) -> None:
    top = start()
    top.until(shown)
    top.press("down", " ")
    top.until(lambda screen: "▸ serve" in screen)
    top.press("/", *"trai", "enter")
    top.until(lambda screen: "serve" not in screen and "train" in screen)
    top.press("esc")
    top.until(lambda screen: "serve" in screen)
    top.press("enter")
    top.until(lambda screen: "CARD GPU" in screen and "the last 10 minutes" in screen)
    top.press("q")
    top.until(shown)


@pytest.mark.usefixtures("daemon")
def test_a_terminal_of_another_size_is_filled_at_once(start: Start) -> None:
    top = start("--interval", "100")
    top.until(shown)
    top.resize(140, 40)
    top.until(lambda screen: "POLICY" in screen and "q quit" in screen.split("\n")[39])
    top.resize(30, 8)
    top.until(lambda screen: "POLICY" not in screen and "q quit" in screen.splitlines()[7])
    top.resize(3, 1)
    top.resize(80, 24)
    top.until(shown)


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(
    ("way", "status"),
    [("q", 0), ("\x03", 0), (signal.SIGTERM, -15), (signal.SIGHUP, -1), ("\x1c", -3)],
)
def test_the_terminal_is_left_as_it_was(
    start: Start, way: str | signal.Signals, status: int
) -> None:
    top = start()
    before = top.modes
    top.until(shown)
    assert top.modes != before
    if isinstance(way, str):
        top.press(way)
    else:
        os.kill(top.pid, way)
    assert top.end() == status
    assert top.modes == before
    assert top.raw.rfind(SHOW_CURSOR) > top.raw.rfind(HIDE_CURSOR) > 0
    assert b"Traceback" not in top.raw


@pytest.mark.usefixtures("daemon")
def test_it_sleeps_and_comes_back(start: Start) -> None:
    """Beneath a shell: an orphaned process group is not stopped (POSIX)."""
    shell = start(program=["sh", "-i"], PS1="ready> ", ENV="")
    shell.until(lambda screen: "ready>" in screen)
    before = shell.modes
    shell.press(f"{shlex.join(PROGRAM)}\n")
    shell.until(shown)
    shell.press("\x1a")
    shell.until(lambda screen: screen.rstrip().endswith("ready>"))
    assert shell.modes == before
    shell.press("fg\n")
    shell.until(shown)
    shell.press("q")
    shell.until(lambda screen: "ready>" in screen.splitlines()[-1])
    shell.press(*"echo left $?\n")
    shell.until(lambda screen: "left 0" in screen)
    shell.press("exit\n")
    assert shell.end() == 0


def test_top_says_since_when_gpushared_does_not_answer(
    start: Start, daemon: AnsweringDaemon
) -> None:
    top = start(columns=120)
    top.until(shown)
    daemon.answers["cards"] = refusal(ErrorCode.FAILED, "gpushared failed")
    top.until(lambda screen: bool(re.search(r"no new data since \d\d:\d\d:\d\d: ", screen)))
