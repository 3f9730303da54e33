# SPDX-License-Identifier: Apache-2.0
"""A container that allocates, launches and frees without end, and notes every call that fails."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from gpushare.verify import ProbeTenant
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

#: One round; it ends with nothing but a context.
ROUND = (
    *("alloc cuMemAlloc 4194304", "alloc cuMemAllocAsync 4194304", "alloc cuMemCreate 4194304"),
    *("spin 200000 5", "info", "free"),
)


class BackgroundLoad:
    """Rounds in a thread of their own, while the block lasts; paused, it can be asked things."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.rounds = 0
        self.failed: list[dict[str, Any]] = []
        self._error: BaseException | None = None
        self._go = threading.Event()
        self._stop = False
        self._idle = threading.Event()
        self.tenant: ProbeTenant
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> BackgroundLoad:
        self.tenant = self.bundle.run()
        assert self.tenant.start()["code"] == 0
        self._thread.start()
        self.go_on()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop = True
        self._go.set()
        self._thread.join()
        self.tenant.close()
        self.bundle.remove()

    def works(self, rounds: int = 5) -> None:
        """Return once it has done so many more rounds; AssertionError where any call failed."""
        until = self.rounds + rounds
        wait_until(lambda: self.rounds >= until or bool(self.failed) or self._error is not None)
        assert self._error is None, self._error
        assert self.failed == []

    def pause(self) -> None:
        """Return once it has nothing but its context, and does nothing."""
        self._go.clear()
        self._idle.wait()
        assert self.failed == []

    def go_on(self) -> None:
        self._idle.clear()
        self._go.set()

    def ask(self, command: str) -> dict[str, Any]:
        """Ask the program something; it is paused."""
        assert self._idle.is_set()
        return self.tenant.ask(command)

    def _work(self) -> None:
        while True:
            if not self._go.is_set():
                self._idle.set()
                self._go.wait()
            if self._stop:
                return
            try:
                for command in ROUND:
                    answer = self.tenant.ask(command)
                    if answer.get("code", 0) != 0:
                        self.failed.append(answer)
            except BaseException as error:  # noqa: BLE001 - for the thread that waits
                self._error = error
                self._idle.set()
                return
            self.rounds += 1
