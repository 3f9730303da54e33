# SPDX-License-Identifier: Apache-2.0
"""A tenant that works while something else goes wrong: no call of it may fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpushare.verify.runners import ProbeTenant
from tests.system.hostile.container import GIB, RuntimeContainer, RuntimeNamespace
from tests.system.waiting import wait_until

#: What the neighbour is allocated.
QUOTA_BYTES = 40 * GIB
_ALLOCATED_BYTES = 38 * GIB  # beside it, contexts of two processes
_PAUSE_SECONDS = 0.02  # between two rounds: the fault is what is looked at


class Neighbour:
    """Allocates nearly all of its quota, launches, frees: again and again, on a thread."""

    def __init__(self, tenant: ProbeTenant, container: RuntimeContainer) -> None:
        self.container = container
        self.rounds = 0
        self._tenant = tenant
        self._stopped = threading.Event()
        self._failed: list[object] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def assert_undisturbed(self) -> None:
        """It goes on, and none of its calls has failed."""
        before = self.rounds
        wait_until(lambda: self.rounds > before + 1 or bool(self._failed))
        assert self._failed == [], self._failed

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        assert self._failed == [], self._failed

    def _work(self) -> None:
        commands = (f"alloc {_ALLOCATED_BYTES}", "spin 100000 2", "free")
        while not self._stopped.wait(_PAUSE_SECONDS) and not self._failed:
            try:
                answers = [self._tenant.ask(command) for command in commands]
            except Exception as error:  # noqa: BLE001 - it is raised where it is asked for
                self._failed.append(error)
                return
            self._failed += [answer for answer in answers if answer["code"] != 0]
            self.rounds += 1


@contextmanager
def working(place: RuntimeNamespace, runtime: str = "runc") -> Iterator[Neighbour]:
    """Run a neighbour in a container of 40 GiB for as long as the block."""
    container = RuntimeContainer(place, runtime, quota={"memory": "40GiB"})
    with container.started() as tenant:
        made = Neighbour(tenant, container)
        try:
            yield made
        finally:
            made.stop()
