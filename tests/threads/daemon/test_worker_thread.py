# SPDX-License-Identifier: Apache-2.0
"""A thread that does one thing after another, for callers that wait and callers that do not."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from gpushare.daemon.core import loop
from gpushare.daemon.core.loop import Worker, WorkerPool


def test_a_waiting_caller_continues_after_all_earlier_work() -> None:
    worker = Worker("decide")
    done: list[str] = []

    def note(what: str) -> None:
        done.append(f"{what} on {threading.current_thread().name}")

    worker.submit(lambda: note("first"))
    worker.run(lambda: note("second"))
    assert done == ["first on decide", "second on decide"]
    worker.finish(5)


def test_a_waiting_caller_gets_the_error_and_the_thread_goes_on() -> None:
    worker = Worker("decide")

    def fail() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        worker.run(fail)
    worker.run(lambda: None)
    worker.finish(5)


def test_of_the_short_jobs_of_a_pool_few_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_SHORT_SECONDS", 1000.0)
    pool, lock = WorkerPool("create", 8, 2), threading.Lock()
    running: list[int] = []
    seen: list[int] = []

    def work(number: int) -> None:
        with lock:
            running.append(number)
            seen.append(len(running))
        time.sleep(0.01)
        with lock:
            running.remove(number)

    for number in range(30):
        pool.submit(partial(work, number))
    pool.finish(60)
    assert len(seen) == 30
    assert max(seen) == 2


def test_jobs_of_a_pool_that_hang_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_SHORT_SECONDS", 0.01)
    pool, go_on, done = WorkerPool("create", 8, 2), threading.Event(), threading.Event()
    for _ in range(7):
        pool.submit(lambda: go_on.wait(60))
    pool.submit(done.set)
    assert done.wait(60)
    go_on.set()
    pool.finish(60)
