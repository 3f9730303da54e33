# SPDX-License-Identifier: Apache-2.0
"""The driver, through a process of its own that calls NVML.

NVML can hang with the driver, and be replaced beneath a process that loaded it. So a worker calls
it (worker_main.py), and one thread in the daemon talks to the worker. A caller waits for that
thread until a deadline and no longer; while a question hangs, every further one fails at once, and
the last answers are stale. A worker that does not answer for several deadlines is killed, and
another one is started: later each time where that does not help.

The library is reloaded, in a new process, when that is requested (`renew`), when the driver's
version, its cards or their parts are other ones, and now and then while a card does not answer:
nothing less shows a card that was reset.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gpushare.daemon.cards import validation, worker_process
from gpushare.daemon.cards.driver_client import (
    DriverError,
    DriverGeneration,
    DriverLimits,
    DriverSample,
    DriverTimeout,
    InvalidSample,
)
from gpushare.daemon.cards.validation import DriverDescription
from gpushare.daemon.cards.worker_process import WorkerLost, WorkerProcess
from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import T, Task
from gpushare.daemon.placement.model import Card, Links
from gpushare.metrics_schema import CardSensors

#: A first nvmlInit without persistence mode takes seconds per card: it may come late once.
_PATIENCE_DEADLINES: Final = 4
_FIRST_WAIT_SECONDS: Final = 0.25
_LONGEST_WAIT_SECONDS: Final = 30.0
_STEADY_SECONDS: Final = 10.0
#: Between attempts to see whether a card that does not answer was reset.
_AGAIN_SECONDS: Final = 10.0
_LONGEST_AGAIN_SECONDS: Final = 320.0

_NOTHING: Final = DriverDescription("", "", (), DriverGeneration(), limits=False, totals={})


class Nvml:
    """NVML as the library at `library`; nothing is known of it before the first `open`.

    `env` is set in the worker first: a simulated driver finds its device by it. `deadline` is in
    seconds, for each question. For any thread.
    """

    def __init__(self, library: Path, env: Mapping[str, str], deadline: float) -> None:
        self.library = library
        self._env = dict(env)
        self._deadline = deadline
        self._questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._hanging: Task[Any] | None = None
        self._loaded = _NOTHING  # immutable: published for all threads
        self._vanished: tuple[Card, ...] = ()
        self._no_limits = False
        # All below is the thread's.
        self._worker: WorkerProcess | None = None
        self._loads = 0
        self._loaded_at = 0.0
        self._xids: tuple[tuple[str, int], ...] = ()  # not handed on yet
        self._sensors: Mapping[str, CardSensors] = {}  # by uuid, as last read
        self._sampled: DriverSample | None = None  # the last, if it was read
        self._sampled_of: object = None  # which library it was
        self._unhealthy = False
        self._again_seconds = _AGAIN_SECONDS
        self._wait_seconds = 0.0
        self._not_before = 0.0
        self._why = ""
        threading.Thread(target=self._serve, name="driver", daemon=True).start()

    @property
    def driver_version(self) -> str:
        """As the driver says it."""
        return self._loaded.driver_version

    @property
    def cuda_version(self) -> str:
        """The newest CUDA version that it supports."""
        return self._loaded.cuda_version

    @property
    def has_limits(self) -> bool:
        """Whether it can limit the memory of a cgroup."""
        return self._loaded.limits and not self._no_limits

    def open(self) -> None:
        """Have the library loaded; DriverTimeout where it is not yet: asking again waits on."""
        self._ask(self._ready)

    def afterwards(self, function: Callable[[], None]) -> None:
        """Have `function`, which takes no time, called once what hangs now has come to an end."""
        self._questions.put(Task(function).run)

    def renew(self, library: Path, env: Mapping[str, str]) -> None:
        """Reload the library from its current path."""
        self._ask(lambda: self._renew(library, env))

    def cards(self) -> tuple[Card, ...]:
        """Return the cards, and behind them those that were there and are not listed any more."""
        return self._loaded.cards + self._vanished

    def links(self) -> Links:
        """Return how far the cards are from each other; as of when the library was loaded."""
        return self._loaded.links

    def sample(self, *, brief: bool = False) -> DriverSample:
        """Return what each process takes of each card; `brief`: see nvml_calls."""
        return self._ask(lambda: self._sample(brief=brief))

    def set_limits(self, uuid: str, cgroup: Path, limits: DriverLimits) -> None:
        """Limit what a cgroup has of a card; DriverError where the driver does not."""
        arguments = {"uuid": uuid, "cgroup": os.fsdecode(cgroup), **vars(limits)}
        self._ask(lambda: self._call("set_limits", arguments))

    def limits(self, uuid: str, cgroup: Path) -> DriverLimits:
        """Return what a cgroup may have of a card."""
        arguments = {"uuid": uuid, "cgroup": os.fsdecode(cgroup)}
        answer = self._ask(lambda: self._call("limits", arguments))
        with validation.reported("reports limits"):
            return DriverLimits(int(answer["soft"]), int(answer["hard"]))

    def close(self) -> None:
        """End the worker; no question may follow."""
        self._questions.put(None)

    def _ask(self, function: Callable[[], T]) -> T:
        if self._hanging is not None and not self._hanging.wait(0):
            raise DriverTimeout("the NVIDIA driver is not responding")
        question = Task(function)
        self._questions.put(question.run)
        if not question.wait(self._deadline):
            self._hanging = question
            raise DriverTimeout(f"the NVIDIA driver did not respond within {self._deadline:g} s")
        return question.result()

    def _serve(self) -> None:
        while (question := self._questions.get()) is not None:
            question()
        self._let_go()

    # The rest is that thread's.

    def _call(self, what: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the worker; one that is lost or hangs is replaced at the next call."""
        self._ready()
        return self._call_worker(what, arguments)

    def _call_worker(self, what: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        assert self._worker is not None
        try:
            answer = self._worker.ask(what, dict(arguments), self._deadline * _PATIENCE_DEADLINES)
        except (WorkerLost, DriverTimeout) as error:
            log("driver-worker-lost", "warning", pid=self._worker.pid, call=what, reason=str(error))
            self._loads += 1
            self._fail(str(error))
            raise
        if "error" in answer:
            if what == "look":
                # The library as a whole: DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH, UNINITIALIZED.
                self._loads += 1
                self._fail(str(answer["error"]))
            if answer.get("no_limits") and what in {"set_limits", "limits"}:
                self._no_limits = True  # nor for the next tenant
            raise DriverError(str(answer["error"]))
        return answer

    def _fail(self, why: str) -> None:
        """Let go of the worker, and of another one for a while where that has just been tried."""
        if time.monotonic() - self._loaded_at > _STEADY_SECONDS:
            self._wait_seconds = 0.0
        self._not_before = time.monotonic() + self._wait_seconds
        self._wait_seconds = min(
            max(_FIRST_WAIT_SECONDS, 2 * self._wait_seconds), _LONGEST_WAIT_SECONDS
        )
        self._why = why
        self._let_go()

    def _let_go(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _renew(self, library: Path, env: Mapping[str, str]) -> None:
        self.library, self._env = library, dict(env)
        self._let_go()
        self._not_before = 0.0
        self._ready()

    def _ready(self) -> None:
        """See that there is a worker that has loaded the library."""
        if self._worker is not None:
            if self._unhealthy and time.monotonic() - self._loaded_at > self._again_seconds:
                self._load_beside(self._worker)
            return
        if time.monotonic() < self._not_before:
            raise DriverError(f"{self._why}; gpushared will retry soon")
        self._load()

    def _load_beside(self, before: WorkerProcess) -> None:
        """Reload the library because of a card; if that fails, keep the current worker."""
        try:
            self._load()
        except DriverError:
            self._worker, self._not_before = before, 0.0
        else:
            before.end()
        # Until it has helped: a card that is lost may make each loading slow.
        self._again_seconds = min(2 * self._again_seconds, _LONGEST_AGAIN_SECONDS)

    def _load(self) -> None:
        """Start a worker and have it load the library; its answer describes the driver."""
        self._worker = worker_process.start_worker()
        self._loaded_at = time.monotonic()
        arguments = {"library": str(self.library), "env": self._env}
        try:
            loaded = validation.driver_description(self._call_worker("load", arguments))
        except (WorkerLost, DriverTimeout):
            raise
        except DriverError as error:
            self._fail(str(error))
            raise
        listed = {card.uuid for card in loaded.cards}
        # An instance ends with its card's layout, and no tool destroys one that is in use.
        gone = [card for card in self.cards() if card.uuid not in listed and card.instance is None]
        # The driver renumbers the others: their numbers are beyond.
        self._vanished = tuple(
            replace(card, index=len(loaded.cards) + number) for number, card in enumerate(gone)
        )
        self._loaded = replace(loaded, generation=replace(loaded.generation, loads=self._loads))
        self._no_limits = False
        self._unhealthy = bool(gone or loaded.lost)
        log("driver-worker-started", pid=self._worker.pid, driver=loaded.driver_version)

    def _sample(self, *, brief: bool) -> DriverSample:
        self._ready()
        try:
            sample = self._look(brief=brief)
            if sample.generation != self._loaded.generation:
                self._let_go()
                self._load()
                sample = self._look()
        except InvalidSample:
            self._unhealthy = True
            raise
        self._unhealthy = bool(sample.health or self._vanished or self._loaded.lost)
        if not self._unhealthy:
            self._again_seconds = _AGAIN_SECONDS
        lost = "; ".join(self._loaded.lost)
        health = {
            card.uuid: f"no longer listed by the driver{lost and ': '}{lost}"
            for card in self._vanished
        }
        xids, self._xids = self._xids, ()
        return replace(sample, health={**sample.health, **health}, xids=xids, sensors=self._sensors)

    def _look(self, *, brief: bool = False) -> DriverSample:
        last, self._sampled = self._sampled, None
        if self._sampled_of is not self._loaded:
            last = None
        answer = self._call_worker("look", {"known": last is not None, "brief": brief})
        # They are reported once, whatever the rest of the answer is worth.
        self._xids += validation.new_xids(answer)
        if "sensors" in answer:
            self._sensors = validation.card_sensors(answer)
        if last is not None and "cards" not in answer:  # nothing new: comparing both costs nothing
            self._sampled = replace(last, taken_ns=time.monotonic_ns())
        else:
            self._sampled = validation.driver_sample(answer, self._loaded)
            self._sampled_of = self._loaded
        return self._sampled
