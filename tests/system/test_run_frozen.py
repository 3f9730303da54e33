# SPDX-License-Identifier: Apache-2.0
"""A command of `gpushare run` that is frozen: what its user sees, and how it ends."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from gpushare.cli.supervisor import STOP_SECONDS
from gpushare.client import Client
from tests.stack import Stack
from tests.system.waiting import wait_until

NAME = "watched"
COUNTS = "i=0; while :; do echo $((i += 1)); sleep 0.02; done"
POLITE = f"trap 'exit 42' TERM; {COUNTS}"
DEAF = f"trap '' TERM; trap : INT; {COUNTS}"


class TerminalCommand:
    """A command on a terminal of its own."""

    def __init__(self, stack: Stack, *words: str) -> None:
        self.client = Client(stack.socket)
        self._terminal, inside = pty.openpty()
        self._seen = b""
        os.set_blocking(self._terminal, False)
        self.process = subprocess.Popen(
            [
                "setsid",
                "--ctty",
                *stack.cli,
                "run",
                "--memory",
                "1GiB",
                "--name",
                NAME,
                "--",
                *words,
            ],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=stack.environment,
        )
        os.close(inside)
        self.sees("1")

    def sees(self, text: str) -> None:
        """Wait until the terminal has shown `text`."""
        wait_until(lambda: text in self.seen())

    def seen(self) -> str:
        """Return all that the terminal has shown."""
        with suppress(OSError):
            while more := os.read(self._terminal, 1 << 16):
                self._seen += more
        return self._seen.decode()

    def said(self) -> list[str]:
        """Return the lines of gpushare's."""
        return [line for line in self.seen().splitlines() if line.startswith("gpushare: ")]

    def types(self, keys: bytes) -> None:
        """Type `keys` at the terminal."""
        os.write(self._terminal, keys)

    def freezes(self) -> list[str]:
        """Return the kinds of decisions on it."""
        return [one["by"] for one in self.client.tenant(NAME)["interventions"]]

    def end(self) -> None:
        """Kill it, frozen or not."""
        with suppress(Exception):
            self.client.stop(NAME, "KILL", 0)
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@contextmanager
def watched(stack: Stack, *words: str) -> Iterator[TerminalCommand]:
    made = TerminalCommand(stack, *words)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def frozen(stack: Stack) -> Iterator[TerminalCommand]:
    with watched(stack, "sh", "-c", POLITE) as made:
        made.client.pause(NAME, "inspecting card 0")
        made.sees("is paused")
        yield made


@pytest.mark.gate
def test_sigterm_ends_it_as_it_would_otherwise(frozen: TerminalCommand) -> None:
    frozen.process.send_signal(signal.SIGTERM)
    assert frozen.process.wait() == 42
    assert "is resumed to exit (SIGTERM)" in frozen.said()[-1]


def test_a_command_that_ignores_ctrl_c_cannot_undo_a_freeze_with_it(stack: Stack) -> None:
    with watched(stack, "sh", "-c", DEAF) as it:
        it.client.pause(NAME)
        it.sees("is paused")
        it.process.send_signal(signal.SIGTERM)  # ignored: nothing is to end
        time.sleep(2.0)
        assert it.freezes() == ["operator"]
        it.types(b"\x03")
        it.sees("is resumed to exit (SIGINT)")
        it.client.stop(NAME, "INT", 3600)
        deadline = time.monotonic() + 9 * STOP_SECONDS
        while it.process.poll() is None:
            it.types(b"\x03")  # if one gave it more time, the next would come within that
            assert time.monotonic() < deadline, "it is not killed"
            time.sleep(STOP_SECONDS / 20)
        assert it.process.returncode == -signal.SIGKILL
