# SPDX-License-Identifier: Apache-2.0
"""How much time the simulated card has given to each tenant, by the card's own account."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpushare import simulator
from tests.system.waiting import wait_until
from tools.bench.shares.machine import parse_readings

PERIOD_MS = 20


class ServedTime(NamedTuple):
    """The card time that each process had had at `moment`, both in ns of real time."""

    moment: float
    served: Mapping[int, float]


class Truth:
    """Reads the card all the time, by the program `watch` of tools/bench/shares."""

    def __init__(self, watch: Path, device: Path, log: Path) -> None:
        self._log = log
        self._readings: list[ServedTime] = []
        self._read = 0
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(watch), str(PERIOD_MS)],
                env={**os.environ, simulator.DEVICE_ENV: str(device)},
                stdin=subprocess.DEVNULL,
                stdout=output,
            )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def now(self) -> ServedTime:
        """Return a reading that is later than this call."""
        known = len(self._look())
        # The first of them may have been made before the call.
        wait_until(lambda: len(self._look()) > known + 1)
        return self._readings[known + 1]

    def later(self, than: ServedTime, seconds: float) -> ServedTime:
        """Return the first reading `seconds` of real time after `than`, whenever it is asked."""
        due = than.moment + seconds * 1e9
        wait_until(lambda: self._look()[-1].moment >= due)
        return next(one for one in self._readings if one.moment >= due)

    def _look(self) -> list[ServedTime]:
        """Read what has been written since; return all readings."""
        assert self._process.poll() is None, "the watcher has ended"
        with self._log.open() as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole.encode())
        for moment, by_pid in parse_readings(whole):
            served: dict[int, float] = {}
            for pid, ns in by_pid:
                served[pid] = served.get(pid, 0.0) + ns
            self._readings.append(ServedTime(moment, served))
        return self._readings


def part(before: ServedTime, after: ServedTime, pids: Iterable[int]) -> float:
    """Return what those processes had of the card in between, in percent."""
    had = sum(after.served.get(pid, 0.0) - before.served.get(pid, 0.0) for pid in pids)
    return 100 * had / (after.moment - before.moment)
