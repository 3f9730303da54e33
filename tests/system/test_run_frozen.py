# SPDX-License-Identifier: Apache-2.0
"""A command of `gpushare run` that is frozen: what its user sees, and how it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from gpushare.cli.supervisor import STOP_SECONDS
from tests.emulator import Emulator
from tests.stack import Stack

NAME = "watched"
COUNTS = "i=0; while :; do echo $((i += 1)); sleep 0.02; done"
POLITE = f"trap 'exit 42' TERM; {COUNTS}"
DEAF = f"trap '' TERM; trap : INT; {COUNTS}"
CTRL_C = "\x03"


@contextmanager
def frozen(stack: Stack, script: str) -> Iterator[Emulator]:
    """A command on a terminal of its own, which an operator has paused."""
    argv = [*stack.cli, "run", "--memory", "1GiB", "--name", NAME, "--", "sh", "-c", script]
    with Emulator(argv, stack.environment, columns=200) as terminal:
        try:
            terminal.until(lambda screen: "1" in screen)
            stack.client.pause(NAME, "inspecting card 0")
            terminal.until(lambda screen: f"{NAME} is paused (operator: inspecting" in screen)
            yield terminal
        finally:
            with suppress(Exception):
                stack.client.stop(NAME, "KILL", 0)


@pytest.mark.gate
def test_sigterm_ends_it_as_it_would_otherwise(stack: Stack) -> None:
    with frozen(stack, POLITE) as it:
        os.kill(it.pid, signal.SIGTERM)
        assert it.end() == 42
        assert "is resumed to exit (SIGTERM)" in it.text


def test_a_command_that_ignores_ctrl_c_cannot_undo_a_freeze_with_it(stack: Stack) -> None:
    with frozen(stack, DEAF) as it:
        os.kill(it.pid, signal.SIGTERM)  # ignored: nothing is to end
        it.keep(2.0)
        found = stack.client.tenant(NAME)["interventions"]
        assert [one["by"] for one in found] == ["operator"]
        it.press(CTRL_C)
        it.until(lambda _: b"is resumed to exit (SIGINT)" in it.raw)
        stack.client.stop(NAME, "INT", 3600)
        deadline = time.monotonic() + 9 * STOP_SECONDS
        while os.waitid(os.P_PID, it.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            it.press(CTRL_C)  # if one gave it more time, the next would come within that
            assert time.monotonic() < deadline, "it is not killed"
            it.keep(STOP_SECONDS / 20)
        assert it.end() == -signal.SIGKILL
