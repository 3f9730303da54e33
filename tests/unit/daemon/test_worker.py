# SPDX-License-Identifier: Apache-2.0
"""A thread that does one thing after another, for who waits and who does not."""

from __future__ import annotations

import threading

import pytest

from gpushare.daemon.service.worker import Worker


def test_who_waits_goes_on_after_all_that_was_submitted_before() -> None:
    worker = Worker("decide")
    done: list[str] = []

    def note(what: str) -> None:
        done.append(f"{what} on {threading.current_thread().name}")

    worker.submit(lambda: note("first"))
    worker.run(lambda: note("second"))
    assert done == ["first on decide", "second on decide"]
    worker.finish(5)


def test_who_waits_is_told_what_went_wrong_and_the_thread_goes_on() -> None:
    worker = Worker("decide")

    def fail() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        worker.run(fail)
    worker.run(lambda: None)
    worker.finish(5)
