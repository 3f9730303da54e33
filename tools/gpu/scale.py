# SPDX-License-Identifier: Apache-2.0
"""What a process on the bare driver takes of the card, step by step, as three accounts have it.

The card's used memory and the process's are NVML's, read by a process that has no context; what is
free is cuMemGetInfo's, read by the process itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gpushare.verify.runners import ProbeFailed

from . import overhead
from .driver import DriverPaths
from .process import Child, child, environment
from .report import NotMeasured, ReportRow, quantity


@dataclass(frozen=True)
class MemoryReading:
    """Bytes used of the card and by the process; `process` None where NVML does not list it."""

    card: int
    process: int | None
    free: int | None

    def since(self, before: MemoryReading) -> MemoryReading:
        """Return what was taken since `before`: `free` is by how much it fell."""
        return MemoryReading(
            self.card - before.card,
            None if self.process is None else self.process - (before.process or 0),
            None if self.free is None or before.free is None else before.free - self.free,
        )

    @property
    def taken(self) -> int:
        """cuMemGetInfo's figure, NVML's of the card before there is a context."""
        return self.card if self.free is None else self.free

    def __str__(self) -> str:
        listed = "does not list it" if self.process is None else quantity(self.process, "bytes")
        return f"NVML: of the card {quantity(self.card, 'bytes')}, of the process {listed}"


class Weighed:
    """A process of child/steps.py on the bare driver, and what its steps take."""

    def __init__(self, driver: DriverPaths, *more: str, **env: str) -> None:
        self.driver = driver
        self.has_context = False
        with ExitStack() as stack:
            self._watcher = stack.enter_context(overhead.probe(driver, "watcher"))
            argv = child("steps", str(driver.cuda), *more)
            self.process = stack.enter_context(Child("steps", argv, environment(driver.env, env)))
            self.process.start()
            self._ends = stack.pop_all()

    def __enter__(self) -> Weighed:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is ProbeFailed:
            self.process.process.kill()  # it hangs, or is gone: it is not waited for twice
        self._ends.close()

    def context(self) -> MemoryReading:
        """Make its context, and return what that took."""
        before = self.read()
        self.process.ask("context")
        self.has_context = True
        return self.read().since(before)

    def read(self) -> MemoryReading:
        shown = overhead.card(self._watcher, self.driver)
        pid = self.process.process.pid
        own = [entry["bytes"] for entry in shown["processes"] if entry["pid"] == pid]
        free = self.process.ask("info")["free"] if self.has_context else None
        return MemoryReading(shown["used"], own[0] if own else None, free)

    def step(self, name: str, command: str, note: str = "") -> Iterator[ReportRow]:
        """Do `command`; the row is what it took, or why the driver did not do it.

        ProbeFailed where the process is gone, or gives no answer any more.
        """
        try:
            grown, answer = self.grown(command)
        except NotMeasured as error:
            yield ReportRow(name, missing=str(error))
            return
        yield taken(name, grown, "; ".join(filter(None, (note, said(answer)))))

    def grown(self, command: str) -> tuple[MemoryReading, dict[str, Any]]:
        before = self.read()
        answer = self.process.ask(command)
        return self.read().since(before), answer


def taken(name: str, grown: MemoryReading, note: str = "") -> ReportRow:
    """Return the row of what was taken, in one unit and the other accounts beside it."""
    return ReportRow(name, grown.taken, "bytes", "; ".join(filter(None, (note, str(grown)))))


def said(answer: dict[str, Any]) -> str:
    """Return what a child printed beside its answer."""
    told = {key: value for key, value in answer.items() if key != "event"}
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in told.items())
