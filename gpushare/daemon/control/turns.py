# SPDX-License-Identifier: Apache-2.0
"""A cgroup that runs for a part of the time only: a thread that freezes and thaws it by turns.

Nobody else may have it frozen when it begins, and it is thawed however this ends. What another
freezes meanwhile (an engine's pause, by the same hierarchy) is left alone: that is seen by its
write, also where it was frozen already, but for the moment in which we freeze it ourselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

from gpushare.daemon.policy import duty
from gpushare.host.freezing import Group
from gpushare.host.written import Written

_PERIOD_SECONDS: Final = duty.PERIOD_NS / 1e9
_ANOTHERS: Final = "it was frozen by another"
_END_SECONDS: Final = 1.0  # a freeze waits for a fifth of that at most


class Turns:
    """Has `group` run for `runs` (0..1) of each period, which any thread may set.

    `failed` is told why, by the thread, where it ends without having been asked.
    """

    def __init__(self, group: Group, runs: float, failed: Callable[[str], None]) -> None:
        self.runs = runs
        self._group = group
        self._failed = failed
        self._ends = threading.Event()
        self._frozen = False
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)
        self._thread.start()

    def end(self) -> bool:
        """Have it run all the time from now on; False where it could not be thawed."""
        self._ends.set()
        self._thread.join(_END_SECONDS)
        return not self._frozen

    def _run(self) -> None:
        why = "it ended for a fault of its own"
        try:
            why = self._take_turns()
        except OSError as error:
            why = str(error)
        finally:
            if not self._ends.is_set():
                self._failed(why)

    def _take_turns(self) -> str:
        with closing(Written(self._group.file)) as written:
            return self._turn_by_turn(written)

    def _turn_by_turn(self, written: Written) -> str:
        while not self._ends.wait(_PERIOD_SECONDS * self.runs):
            if self.runs >= 1.0:
                continue
            if self._group.is_set():
                return _ANOTHERS
            self._frozen = True
            try:
                self._group.freeze()
                written.again()  # that was us
                self._ends.wait(_PERIOD_SECONDS * (1.0 - self.runs))
                is_anothers = written.again() and self._group.is_set()
            except BaseException:
                self._group.thaw()
                self._frozen = False
                raise
            if not is_anothers:
                self._group.thaw()
            self._frozen = False
            if is_anothers:
                return _ANOTHERS
        return ""
