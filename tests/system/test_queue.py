# SPDX-License-Identifier: Apache-2.0
"""Starts that wait for room, with real processes, docker, and a gpushared that is killed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare.protocol.queue import QueueEntry
from tests.stack import Stack
from tests.system.waiting import wait_until

MOST = "100GiB"  # of a card with 140 GiB: two do not fit
LIMIT_SECONDS = 60


@contextmanager
def started(stack: Stack, *words: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """`gpushare run WORDS`, which is killed with the block if it still runs."""
    with subprocess.Popen(
        [*stack.cli, "run", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=stack.environment,
        **settings,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def holder(stack: Stack, *words: str) -> Any:
    """A command that has most of the card until its stdin ends."""
    return started(stack, "--memory", MOST, *words, "--", "sh", "-c", "echo up; read _")


@contextmanager
def full(stack: Stack) -> Iterator[subprocess.Popen[str]]:
    """A holder that runs."""
    with holder(stack) as process:
        assert is_up(process)
        yield process


def is_up(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "up\n"


def has_its_ticket(process: subprocess.Popen[str]) -> bool:
    """Whether `gpushare run --wait` says that it waits: from then on it outlives gpushared."""
    assert process.stderr is not None
    return "waiting for room" in process.stderr.readline()


def waiting(stack: Stack, name: str) -> list[QueueEntry]:
    return [
        one for one in stack.client.queue() if one["name"] == name and one["state"] == "waiting"
    ]


@pytest.mark.gate
def test_a_second_command_waits_until_the_first_ends_and_then_runs(stack: Stack) -> None:
    with full(stack) as first, holder(stack, "--wait", "--name", "second") as second:
        assert has_its_ticket(second)
        (entry,) = waiting(stack, "second")
        assert (entry["position"], entry["pid"], entry["kind"]) == (1, second.pid, "command")
        assert "no card has room for 100 GiB" in entry["reason"]
        _, errors = first.communicate(timeout=LIMIT_SECONDS)
        assert first.returncode == 1, errors  # of read at the end of its input
        assert is_up(second)
        assert [tenant["name"] for tenant in stack.client.tenants()] == ["second"]
        _, errors = second.communicate(timeout=LIMIT_SECONDS)
        assert "was granted" in errors


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_client_that_ends_leaves_no_ticket_and_starts_nothing(
    stack: Stack, number: signal.Signals, status: int
) -> None:
    with full(stack):
        with holder(stack, "--wait", "--name", "second") as second:
            assert has_its_ticket(second)
            second.send_signal(number)
            output, errors = second.communicate(timeout=LIMIT_SECONDS)
        assert (second.returncode, output) == (status, ""), errors
        wait_until(lambda: not stack.client.queue())


@pytest.mark.gate
def test_a_gpushared_that_is_killed_keeps_the_order(stack: Stack) -> None:
    with full(stack) as first, holder(stack, "--wait", "--name", "second") as second:
        assert has_its_ticket(second)
        with holder(stack, "--wait", "--name", "third") as third:
            assert has_its_ticket(third)
            before = [entry["ticket"] for entry in stack.client.queue()]
            stack.end_daemon()
            stack.start_daemon()
            assert [entry["ticket"] for entry in stack.client.queue()] == before
            first.communicate(timeout=LIMIT_SECONDS)
            assert is_up(second)
            assert [entry["name"] for entry in stack.client.queue()] == ["third"]
