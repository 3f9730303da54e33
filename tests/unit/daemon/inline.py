# SPDX-License-Identifier: Apache-2.0
"""The daemon's loop and workers without threads and sockets: a test says when jobs run.

A submitted job runs before the next one that is waited for, as on a thread that is slow: until
then the test sees what the daemon's other threads would.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from gpushare.daemon.core import loop
from gpushare.daemon.core.loop import Loop, Worker, WorkerPool

T = TypeVar("T")


class Turns:
    """The workers of a daemon. Once the test itself has waited for a job, nothing is left to do."""

    def __init__(self) -> None:
        self.workers: list[InlineWorker] = []
        self._depth = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run the block as a job; then, unless it is one within another, the jobs of all."""
        self._depth += 1
        try:
            yield
            while self._depth == 1 and self.catch_up():
                pass
        finally:
            self._depth -= 1

    def catch_up(self) -> bool:
        """Run what was submitted to each worker; whether there was any."""
        return any([worker.catch_up() for worker in self.workers])  # noqa: C419 - each of them


def quick_sleeps(daemons: Iterable[Turns], patch: pytest.MonkeyPatch) -> None:
    """Let who sleeps find the time passed, and done what the workers had to do."""
    slept = 0.0
    monotonic = time.monotonic

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        for turns in daemons:
            turns.catch_up()

    patch.setattr(time, "sleep", sleep)
    patch.setattr(time, "monotonic", lambda: monotonic() + slept)


class InlineWorker(Worker):
    """Runs its jobs in order, each to its end, in the thread that waits for one."""

    def __init__(self, turns: Turns, name: str) -> None:
        del name
        self.turns = turns
        self._submitted: deque[Callable[[], Any]] = deque()
        self._waiting = set()
        self._is_busy = self._is_finished = False
        turns.workers.append(self)

    def submit(self, job: Callable[[], Any]) -> None:
        """Run `job` with the next that is waited for."""
        self._submitted.append(job)

    def run(self, job: Callable[[], T]) -> T:
        """Return what `job` returns, after the jobs submitted before."""
        if self._is_busy:
            return job()
        with self.turns.turn():
            self.catch_up()
            self._is_busy = True
            try:
                return job()
            finally:
                self._is_busy = False

    def catch_up(self) -> bool:
        """Run what was submitted; whether there was any."""
        if self._is_busy or self._is_finished or not self._submitted:
            return False
        self._is_busy = True
        while self._submitted:
            loop._run_job(self._submitted.popleft())
        self._is_busy = False
        return True

    def finish(self, seconds: float) -> None:
        """Run what was submitted; nothing runs after."""
        del seconds
        with self.turns.turn():
            self.catch_up()
            self._is_finished = True


class InlinePool(WorkerPool):
    """Runs each job where it is submitted, as if a thread were free and quick."""

    def __init__(self, turns: Turns, name: str, most: int) -> None:
        del name, most
        self._turns = turns

    def submit(self, job: Callable[[], Any]) -> None:
        """Run `job`."""
        with self._turns.turn():
            loop._run_job(job)

    def finish(self, seconds: float) -> None:
        """Do nothing."""


class QuietLoop(Loop):
    """A loop without the sockets by which a signal wakes it."""

    def __init__(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "socketpair", lambda: (SilentSocket(), SilentSocket()))
            super().__init__()


class SilentSocket:
    """A descriptor that is never ready, with the names of a socket."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC)

    def setblocking(self, blocks: bool) -> None:
        pass

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)
