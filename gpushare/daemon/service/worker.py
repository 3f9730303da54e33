# SPDX-License-Identifier: Apache-2.0
"""A thread that does one thing after another."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any

from gpushare.daemon.log import log


class Worker:
    """Runs what it is given, in order, on a thread called `name`."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> None:
        """Run `job` after those that were submitted before; what it raises is logged."""
        self._jobs.put(job)

    def run(self, job: Callable[[], Any]) -> None:
        """Run `job` as `submit` does, and wait for its end; raise what it raises."""
        done = threading.Event()
        failed: list[BaseException] = []

        def noted() -> None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - raised again by the one who waits
                failed.append(error)
            finally:
                done.set()

        self._jobs.put(noted)
        done.wait()
        if failed:
            raise failed[0]

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` until everything submitted so far is done; nothing runs after."""
        self._jobs.put(None)
        self._thread.join(seconds)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001 - the next job is somebody else's
                log("job-failed", "error", traceback=traceback.format_exc())
