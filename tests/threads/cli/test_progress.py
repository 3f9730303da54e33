# SPDX-License-Identifier: Apache-2.0
"""What a terminal, a pipe and --json have of the progress of a command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """\
import sys, time
from gpushare.cli import text
text.AFTER_SECONDS = float(sys.argv[1])

def work():
    # half a second, or until the line is drawn if it has to be
    is_due = line._thread.is_alive() and text.AFTER_SECONDS == 0
    end = time.monotonic() + (60 if is_due else 0.5)
    while time.monotonic() < end and not line._is_drawn:
        time.sleep(0.01)

with text.ProgressLine(as_json=sys.argv[2] == "json") as line:
    line.step("first \\x1b[2J" + "x" * 200)
    work()
    with line.erased():
        print("result", file=sys.stderr)
    line.step("second")
    work()
"""


def shown(*words: str, terminal: bool = True, term: str = "xterm") -> str:
    """Return what a command with two steps writes to stderr."""
    ours, its = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as reader:
        try:
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, *words],
                stderr=its if terminal else subprocess.PIPE,
                check=True,
                env={**os.environ, "TERM": term, "COLUMNS": ""},
            )
            if not terminal:
                return bytes(done.stderr).decode()
        finally:
            os.close(its)
        parts = []
        while True:
            try:
                parts.append(reader.read(65536))
            except OSError:  # the last end of the terminal is closed
                return b"".join(parts).decode()


def test_a_terminal_shows_the_step_and_its_time_and_keeps_nothing_of_it() -> None:
    text = shown("0", "text")
    first, _, rest = text.partition("result\r\n")
    assert "first ?[2Jxxx" in first
    assert " (0 s)" in first
    assert "second (" in rest
    assert first.endswith("\r\x1b[K")
    assert rest.endswith("\r\x1b[K")


def test_a_line_is_never_wider_than_the_terminal() -> None:
    for frame in shown("0", "text").replace("result\r\n", "").split("\r\x1b[K"):
        assert len(frame) < 80


@pytest.mark.parametrize(
    ("words", "terminal", "term"),
    [
        (("0", "text"), False, "xterm"),
        (("0", "json"), True, "xterm"),
        (("0", "text"), True, "dumb"),
        (("60", "text"), True, "xterm"),
    ],
    ids=["in a pipe", "with --json", "on a dumb terminal", "of what is quick"],
)
def test_there_is_none(words: tuple[str, ...], terminal: bool, term: str) -> None:
    assert shown(*words, terminal=terminal, term=term).replace("\r", "") == "result\n"
