# SPDX-License-Identifier: Apache-2.0
"""What is lost when one process's work must have ended before another's begins.

That is how windows of a shared card change hands: the holder's last kernel ends, its end is seen,
the next is told, and its first kernel starts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .driver import DriverPaths
from .process import Child
from .report import ReportRow
from .slices import workers

KERNEL_NS = 200_000
KERNELS = 25  # of a turn: 5 ms
TURNS = 100  # of each process


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    with workers(driver, 2) as made, tempfile.TemporaryDirectory() as folder:
        rounds = made[0].ask(f"calibrate {KERNEL_NS}")["rounds"]
        load = f"{KERNEL_NS} {rounds}"
        kernel_ns = made[0].ask(f"batch {load} {KERNELS * 10}")["kernel_ns"]
        relay = Relay(Path(folder), made[0], made[1], load)
        passed_ns = relay.turn_ns(kernels=0)
        turn_ns = relay.turn_ns(kernels=KERNELS)
    lost_ns = turn_ns - KERNELS * kernel_ns
    yield ReportRow(
        "a turn of kernels, queued at once", KERNELS * kernel_ns, "ns", f"{KERNELS} kernels"
    )
    yield ReportRow("lost at each handover", lost_ns, "ns", f"{lost_ns / turn_ns:.2%} of a turn")
    note = "by a pipe, an event between them that nothing is before; contained in the line above"
    yield ReportRow("of it, telling the other process and recording", passed_ns, "ns", note)


class Relay:
    """Two processes that take turns by telling each other, through two FIFOs."""

    def __init__(self, folder: Path, first: Child, second: Child, load: str) -> None:
        self._there, self._back = folder / "there", folder / "back"
        for path in (self._there, self._back):
            os.mkfifo(path)
        self._first, self._second, self._load = first, second, load

    def turn_ns(self, kernels: int) -> float:
        """Return what a turn of `kernels` takes from its begin to that of the next."""
        turns = f"{TURNS} {kernels} {self._load}"
        start = os.open(self._there, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._first.tell(f"relay {self._there} {self._back} {turns}")
            self._second.tell(f"relay {self._back} {self._there} {turns}")
            os.write(start, b".")
            began = self._first.receive("relay")["began_ns"]
            ended = self._second.receive("relay")["ended_ns"]
            os.read(start, 1)  # the last turn's, which no process takes
        finally:
            os.close(start)
        return float(ended - began) / (2 * TURNS)
