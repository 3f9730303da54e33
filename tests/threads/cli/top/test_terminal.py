# SPDX-License-Identifier: Apache-2.0
"""`gpushare top` on a terminal: keys, sizes, signals, and how it is left."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gpushare.protocol import CODE_FORBIDDEN
from tests.emulator import Emulator
from tests.unit.cli.conftest import tenant
from tests.unit.cli.fake_daemon import AnsweringDaemon, refusal, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start = Callable[..., Emulator]

SHOW_CURSOR = b"\x1b[?25h"
HIDE_CURSOR = b"\x1b[?25l"
PROGRAM = [sys.executable, "-m", "gpushare.cli", "top", "--interval", "0.2"]
BROKEN = """
import gpushare.cli, gpushare.cli.top
def broken(*_): raise ZeroDivisionError("boom")
gpushare.cli.top.screen = broken
gpushare.cli.main()
"""


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
            pass


def shown(screen: str) -> bool:
    return "train" in screen and "q quit" in screen


@pytest.mark.usefixtures("daemon")
def test_it_shows_cards_containers_and_processes(start: Start) -> None:
    screen = start().until(shown).splitlines()
    assert screen[0].startswith("gpushare top")
    assert screen[1].startswith("0 NVIDIA H200  MEM ▊░")
    assert {"NAME▲", "MEMORY", "CORES%", "QUOTA%", "ISOLATION", "STATE"} <= {*screen[2].split()}
    assert [line.split()[1] for line in screen[3:8]] == ["0", "serve", "(1)", "train", "(1)"]


@pytest.mark.usefixtures("daemon")
def test_keys_move_fold_sort_and_filter(start: Start) -> None:
    top = start()
    top.until(shown)
    top.press("down", " ")
    top.until(lambda screen: "▸ serve" in screen)
    top.press("s")
    top.until(lambda screen: "MEMORY▼" in screen)
    top.press("/", *"trai", "enter")
    top.until(lambda screen: "serve" not in screen and "train" in screen)
    top.press("esc")
    top.until(lambda screen: "serve" in screen)
    top.press("?")
    top.until(lambda screen: "PgUp" in screen and "train" not in screen)
    top.press("x")
    top.until(shown)


@pytest.mark.usefixtures("daemon")
def test_enter_shows_graphs_until_esc(start: Start) -> None:
    top = start("--ascii")
    top.until(shown)
    top.press("down", "enter")
    screen = top.until(lambda screen: "MEMORY" in screen and "Esc back" in screen).splitlines()
    assert screen[0].startswith("serve (4f5e6d7c8b9a) on card 0 NVIDIA H200")
    assert "the last 10 minutes, as far as top has seen it since" in screen[1]
    assert "MEMORY  5.2/8.0 GiB" in screen[2]
    assert "CORES  41 %" in screen[2]
    top.until(lambda screen: "#" in screen)
    top.press("right", "down", "down")
    top.until(lambda screen: screen.startswith("train (") and "the last hour" in screen)
    top.press("esc")
    top.until(shown)


@pytest.mark.usefixtures("daemon")
def test_the_size_is_that_of_the_terminal_not_of_the_environment(start: Start) -> None:
    top = start(columns=140, lines=40, COLUMNS="80", LINES="24")
    top.until(lambda screen: "ISOLATION" in screen and "q quit" in screen.split("\n")[39])


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
def test_a_bug_leaves_the_terminal_as_it_was(start: Start) -> None:
    top = start(program=[sys.executable, "-c", BROKEN, "top"])
    assert top.end() == 1
    assert top.raw.rfind(SHOW_CURSOR) > top.raw.rfind(HIDE_CURSOR) > 0
    assert "internal error: ZeroDivisionError: boom" in top.text


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


def test_the_last_picture_stays_while_the_daemon_is_away(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    from tests.unit.cli.conftest import CARD  # noqa: PLC0415

    answers = {"cards": rows(CARD), "tenants": rows(tenant("train", 3.9, 4))}
    with AnsweringDaemon(path, answers).running():
        top = start()
        top.until(shown)
    top.until(lambda screen: "no new data" in screen and "train" in screen)
    path.unlink()
    answers["tenants"] = rows(tenant("another", 3.9, 4))
    with AnsweringDaemon(path, answers).running():
        top.until(lambda screen: "no new data" not in screen and "another" in screen)


@pytest.mark.usefixtures("daemon")
def test_without_utf_8_and_without_colour(start: Start) -> None:
    top = start(LC_ALL="C", NO_COLOR="1")
    top.until(shown)
    assert top.raw.isascii()
    assert not any(f"\x1b[{colour}m".encode() in top.raw for colour in range(30, 38))


@pytest.mark.usefixtures("daemon")
def test_a_terminal_with_colours_has_them(start: Start) -> None:
    top = start()
    top.until(shown)
    assert b"\x1b[32m" in top.raw
    many = start(TERM="xterm-256color")
    many.until(shown)
    assert b"\x1b[38;5;71m" in many.raw


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(("term", "said"), [("dumb", "cursor"), ("nosuch", "not known")])
def test_an_unsupported_terminal_is_reported_once(start: Start, term: str, said: str) -> None:
    top = start(TERM=term, columns=200)
    assert top.end() == 1
    assert said in top.text
    assert "--once" in top.text


@contextmanager
def idle_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits, and is ended whatever becomes of the test."""
    with subprocess.Popen(["sleep", "1000"]) as made:
        try:
            yield made
        finally:
            made.kill()


def test_a_signal_reaches_the_process_that_was_selected(
    start: Start, daemon: AnsweringDaemon
) -> None:
    with idle_process() as sleeping:
        train = tenant("train", 3.9, 4)
        train["processes"][0] |= {"pid": sleeping.pid}
        daemon.answers |= {
            "tenants": rows(train),
            "tenant": [{"ok": True, "tenant": train}],
        }
        top = start("--allow-changes", columns=120)
        top.until(lambda screen: f"{sleeping.pid} (1) python" in screen)
        top.press("end", "k", "enter")
        top.until(lambda screen: f"send SIGTERM to {sleeping.pid} python of train? y/n" in screen)
        assert sleeping.poll() is None
        top.press("y")
        top.until(lambda screen: "done: send SIGTERM" in screen)
        assert sleeping.wait(timeout=20) == -signal.SIGTERM


def test_a_process_that_took_the_number_since_gets_no_signal(
    start: Start, daemon: AnsweringDaemon
) -> None:
    with idle_process() as another:
        train = tenant("train", 3.9, 4)
        train["processes"][0] |= {"pid": another.pid}
        now = tenant("train", 3.9, 4, processes=[])
        daemon.answers |= {"tenants": rows(train), "tenant": [{"ok": True, "tenant": now}]}
        top = start("--allow-changes", columns=120)
        top.until(lambda screen: f"{another.pid} (1) python" in screen)
        top.press("end", "k", "enter", "y")
        top.until(lambda screen: "failed: process" in screen)
        assert another.poll() is None


def test_a_refused_change_is_reported(start: Start, daemon: AnsweringDaemon) -> None:
    daemon.answers["set"] = refusal(CODE_FORBIDDEN, "set is for root")
    top = start("--allow-changes")
    top.until(shown)
    top.press("down", "p", *"burst-share 40", "enter", "y")
    top.until(lambda screen: "failed: set is for root" in screen)
    asked = [request for request in daemon.requests if request["op"] == "set"]
    assert [(one["policy"], one["cores"]) for one in asked] == [("burst-share", "40")]
