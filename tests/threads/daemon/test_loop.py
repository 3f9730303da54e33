# SPDX-License-Identifier: Apache-2.0
"""The main thread's loop, and what systemd says to it."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gpushare.daemon.core import loop as module
from gpushare.daemon.core.loop import Backoff, Loop, Worker, WorkerPool, wait_readable


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_an_answer_is_sent_before_queued_jobs_run(loop: Loop) -> None:
    seen: list[str] = []
    loop.soon(lambda: seen.append("what follows"))
    loop.call(loop.stop)
    loop.first(lambda: seen.append("the answer"))
    loop.run()
    assert seen == ["the answer", "what follows"]


def test_a_callback_that_fails_is_logged_and_the_next_one_runs(
    loop: Loop, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    loop.call(fail)
    loop.call(loop.stop)
    loop.run()
    line = capfd.readouterr().err
    assert '"event":"callback-failed"' in line
    assert "ZeroDivisionError" in line
    assert line.count("\n") == 1


def test_a_descriptor_that_was_closed_in_this_round_is_not_read(loop: Loop) -> None:
    """Two ready descriptors, and the first one's callback closes the other."""
    pairs = [socket.socketpair(), socket.socketpair()]
    seen: list[int] = []

    def read(mine: int, other: int) -> None:
        seen.append(mine)
        loop.forget(pairs[mine][0].fileno())
        loop.forget(pairs[other][0].fileno())
        loop.stop()

    for mine, other in ((0, 1), (1, 0)):
        pairs[mine][1].send(b"x")
        loop.read(pairs[mine][0].fileno(), lambda mine=mine, other=other: read(mine, other))  # type: ignore[misc]
    loop.run()
    assert len(seen) == 1
    for pair in pairs:
        for end in pair:
            end.close()


def test_a_waiting_caller_continues_after_all_earlier_work_and_gets_its_error() -> None:
    worker = Worker("decide")
    done: list[str] = []

    def note(what: str) -> None:
        done.append(f"{what} on {threading.current_thread().name}")

    def fail() -> None:
        raise OSError("no room")

    worker.submit(lambda: note("first"))
    with pytest.raises(OSError, match="no room"):
        worker.run(fail)
    worker.run(lambda: note("second"))
    assert done == ["first on decide", "second on decide"]
    worker.finish(5)


def test_jobs_of_a_pool_that_hang_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORT_SECONDS", 0.01)
    pool, go_on, done = WorkerPool("create", 8, 2), threading.Event(), threading.Event()
    for _ in range(7):
        pool.submit(lambda: go_on.wait(60))
    pool.submit(done.set)
    assert done.wait(60)
    go_on.set()
    pool.finish(60)


def test_a_descriptor_above_1023_can_be_waited_for() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    read_end, write_end = os.pipe()
    high = fcntl.fcntl(read_end, fcntl.F_DUPFD_CLOEXEC, 1024)
    try:
        assert not wait_readable(high)
        os.write(write_end, b"x")
        assert wait_readable(high)
    finally:
        for fd in (read_end, write_end, high):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_waits_grow_until_it_has_run_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    backoff = Backoff(0.5, longest=3.0, steady=10.0, at_once=True)

    def waits(count: int) -> list[float]:
        found = []
        for _ in range(count):
            backoff.note_start()
            found.append(backoff.wait_seconds())
        return found

    assert waits(6) == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    now += 11.0
    assert [backoff.wait_seconds(), *waits(1)] == [0.0, 0.5]
