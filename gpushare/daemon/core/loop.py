# SPDX-License-Identifier: Apache-2.0
"""Threads: the main thread's loop, workers, a pool of threads, and signals between parts.

The loop serves descriptors, timers and calls from other threads. A callback that fails is logged
and the loop continues: every tenant depends on it. Deadlines that outlive the daemon are in
`boottime`, which no administrator or NTP can set back.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import queue
import select
import selectors
import socket
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, ParamSpec, TypeVar

from gpushare.daemon.core.log import log

_CHECK_SECONDS: Final = 0.1
_SHORT_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.5
Call = Callable[[], Any]
T = TypeVar("T")


class Loop:
    """Runs callbacks until `stop`. Others use `call`, `first`, `soon`, `after` and `stop` only.

    `clock` returns seconds, by which timers are due.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Call]] = []
        self._order = itertools.count()
        self._calls: deque[Call] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopped = False
        self._signals, self._signalled = socket.socketpair()
        self._signals.setblocking(False)
        self._signalled.setblocking(False)
        self.read(self._wake, self._drain)
        self.read(self._signals.fileno(), lambda: self._signals.recv(64))

    @property
    def signal_fd(self) -> int:
        """For signal.set_wakeup_fd: a signal wakes the loop, and its handler runs."""
        return self._signalled.fileno()

    def call(self, function: Call) -> None:
        """Run `function` on the loop's thread, soon; in the order of the calls."""
        self._calls.append(function)
        os.eventfd_write(self._wake, 1)

    def first(self, function: Call) -> None:
        """As `call`, before what is queued: for an answer, which a client waits for."""
        self._calls.appendleft(function)
        os.eventfd_write(self._wake, 1)

    def soon(self, function: Call) -> None:
        """As `call`, with the next thing that wakes the loop: for what follows an answer."""
        self._calls.append(function)

    def after(self, seconds: float, function: Call) -> None:
        """As `later`, for any thread."""
        self.call(lambda: self.later(seconds, function))

    def later(self, seconds: float, function: Call) -> None:
        """Run `function` after `seconds`; the loop's thread alone."""
        heapq.heappush(self._timers, (self._clock() + seconds, next(self._order), function))

    def every(self, seconds: Callable[[], float], function: Call) -> None:
        """Run `function` every `seconds`, which is called each time; first after that time."""

        def again() -> None:
            self.later(seconds(), again)
            function()

        self.later(seconds(), again)

    def read(self, fd: int, function: Call) -> None:
        """Run `function` whenever `fd` can be read."""
        self._selector.register(fd, selectors.EVENT_READ, {selectors.EVENT_READ: function})

    def write(self, fd: int, function: Call | None) -> None:
        """Run `function` whenever `fd`, which is read already, can be written; None: no more."""
        callbacks = dict(self._selector.get_key(fd).data)
        if function is None:
            callbacks.pop(selectors.EVENT_WRITE, None)
        else:
            callbacks[selectors.EVENT_WRITE] = function
        self._selector.modify(fd, sum(callbacks), callbacks)

    def forget(self, fd: int) -> None:
        """Watch `fd` no more. One that is not watched is fine."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def pause(self, paused: socket.socket, function: Call) -> None:
        """Leave a socket alone for a while, and then `read` it again, unless it is closed."""
        fd = paused.fileno()
        self.forget(fd)

        def resume() -> None:
            if paused.fileno() == fd:
                self.read(fd, function)

        self.later(_PAUSE_SECONDS, resume)

    def run(self) -> None:
        """Run callbacks until `stop`."""
        while not self._stopped:
            for key, events in self._selector.select(self._timeout()):
                for event, function in list(key.data.items()):
                    # An earlier callback of this round may have closed it, and given its number
                    # to another.
                    if events & event and self._is_current(key.fd, event, function):
                        _run(function)
            self._run_due()

    def settle(self) -> None:
        """Run what `call` has queued so far; after `run`."""
        for _ in range(len(self._calls)):
            _run(self._calls.popleft())

    def stop(self) -> None:
        """End `run` after the callbacks of this round."""
        self._stopped = True
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Close what the loop itself has open; after `run`."""
        self._selector.close()
        os.close(self._wake)
        self._signals.close()
        self._signalled.close()

    def _timeout(self) -> float | None:
        if self._calls:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - self._clock())

    def _run_due(self) -> None:
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            _run(heapq.heappop(self._timers)[2])
        self.settle()

    def _is_current(self, fd: int, event: int, function: Call) -> bool:
        key = self._selector.get_map().get(fd)
        return key is not None and key.data.get(event) is function

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)


def _run(function: Call) -> None:
    try:
        function()
    except Exception:  # noqa: BLE001 - a fault with one tenant is not the others'
        log("callback-failed", "error", traceback=traceback.format_exc())


def _run_job(job: Call) -> None:
    try:
        job()
    except Exception:  # noqa: BLE001 - the next job is unrelated
        log("job-failed", "error", traceback=traceback.format_exc())


class Task(Generic[T]):
    """A function that another thread runs, and what came of it there."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._done = threading.Event()
        self._results: list[T] = []
        self.error: BaseException | None = None  # what the function raised

    def run(self) -> None:
        """Run it; what it raises is for `result`."""
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            self.error = error
        self._done.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has been run, at most `seconds` from now; None: wait until it has."""
        return self._done.wait(seconds)

    def result(self) -> T:
        """Return what the function returned, or raise what it raised, once it has been run."""
        self.wait()
        if self.error is not None:
            raise self.error
        return self._results[0]


class Worker:
    """Runs the submitted jobs, in order, on a thread called `name`."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._waiting: set[Call] = set()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> None:
        """Run `job` after those that were submitted before; what it raises is logged."""
        self._jobs.put(job)

    def submit_once(self, job: Call) -> None:
        """As `submit`, unless `job` waits for its turn already."""

        def run() -> None:
            self._waiting.discard(job)
            job()

        if job not in self._waiting:
            self._waiting.add(job)
            self.submit(run)

    def run(self, job: Callable[[], T]) -> T:
        """Return what `job` returns, or raise what it raises, once it has had its turn."""
        task = Task(job)
        if threading.current_thread() is self._thread:
            task.run()
        else:
            self._jobs.put(task.run)
        return task.result()

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` until everything submitted so far is done; nothing runs after."""
        self._jobs.put(None)
        self._thread.join(seconds)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            _run_job(job)


class WorkerPool:
    """Runs the submitted jobs on up to `most` threads: a job that hangs delays no other.

    For work whose duration a tenant, an image or a file system chooses. Of the jobs that began less
    than _SHORT_SECONDS ago, no more than `short` run at a time: most of a job is Python, and more
    threads would only have each other, and those of other work, wait for the interpreter.
    """

    def __init__(self, name: str, most: int, short: int | None = None) -> None:
        self._name, self._most = name, most
        self._short = most if short is None else short
        self._jobs: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0  # jobs that wait or run
        self._next = threading.Lock()  # of the one job whose turn it is next
        self._changed = threading.Condition()
        self._begun: dict[int, float] = {}  # by thread, when its job began

    def submit(self, job: Callable[[], Any]) -> None:
        """Run `job` soon; what it raises is logged."""
        with self._lock:
            self._unfinished += 1
            if self._unfinished > len(self._threads) < self._most:
                number = len(self._threads)
                thread = threading.Thread(
                    target=self._serve, name=f"{self._name}-{number}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        self._jobs.put(job)

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` until everything submitted so far is done; nothing runs after."""
        until = time.monotonic() + seconds
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _serve(self) -> None:
        thread = threading.get_ident()
        while True:
            with self._next:
                job = self._jobs.get()
                if job is None:
                    return
                self._begin(thread)
            _run_job(job)
            with self._changed:
                del self._begun[thread]
                self._changed.notify()
            with self._lock:
                self._unfinished -= 1

    def _begin(self, thread: int) -> None:
        """Wait until fewer than `short` jobs have begun a short time ago."""
        with self._changed:
            while True:
                now = time.monotonic()
                short = [begun for begun in self._begun.values() if now < begun + _SHORT_SECONDS]
                if len(short) < self._short:
                    self._begun[thread] = now
                    return
                self._changed.wait(min(short) + _SHORT_SECONDS - now)


class Backoff:
    """The wait before what has ended is started again: longer each time.

    The waits are none, if `at_once`, then `first` seconds, and twice as long each time up to
    `longest`. An end after `steady` seconds counts as the first again.
    """

    def __init__(
        self, first: float, longest: float, steady: float, *, at_once: bool = False
    ) -> None:
        self.since = 0.0  # when it was started last, monotonic
        self._first, self._longest, self._steady = first, longest, steady
        self._beginning = self._next = 0.0 if at_once else first

    def note_start(self) -> None:
        """Note that it is started now."""
        self.since = time.monotonic()

    def wait_seconds(self) -> float:
        """Return the wait after an end."""
        if time.monotonic() - self.since > self._steady:
            self._next = self._beginning
        wait = self._next
        self._next = min(max(self._first, 2 * wait), self._longest)
        return wait


class KeyLocks:
    """One lock for each key that is in use: jobs of one container come one after another."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def lock(self, key: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock of `key`; `check` ends the wait for it by an exception."""
        with self._changed:
            while not self._changed.wait_for(lambda: key not in self._held, _CHECK_SECONDS):
                check()
            self._held.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()


def wait_readable(fd: int, seconds: float = 0.0) -> bool:
    """Whether `fd` can be read within so many seconds; a pidfd, once its process has ended.

    Any `fd`: select(2) refuses those above 1023, which a daemon with many containers has.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred, unix(7)


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and the uid of the process that connected, by the kernel."""
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(option)
    return pid, uid


def boottime() -> float:
    """Return seconds since boot, suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return what names this boot of the machine (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class DaemonClock:
    """The clock that decisions are made by: functions that return seconds.

    `wall` counts from the epoch, `boot` from the boot of this machine, and nobody can set it back.
    """

    wall: Callable[[], float] = time.time
    boot: Callable[[], float] = boottime


P = ParamSpec("P")


class Signal(Generic[P]):
    """Its `listeners` are called when it is, in their order, by the same thread.

    A part calls the parts that it was made with. What others do when something happens to it, it
    does not know: `composition` fills the lists of listeners.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[P, object]] = []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell the listeners."""
        for listener in self.listeners:
            listener(*args, **kwargs)


class ChangeSignal(Signal[[]]):
    """The ledger's, after every change; its listeners return at once, and look at it later.

    Only the thread that changes the ledger says so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_deferred = False
        self._is_due = False

    def __call__(self) -> None:
        """Tell the listeners, or note in a `deferred` block that they have to be told."""
        if self._is_deferred:
            self._is_due = True
        else:
            super().__call__()

    @contextmanager
    def deferred(self, soon: Callable[[Callable[[], None]], None]) -> Iterator[None]:
        """Have the listeners told by `soon`, not in the block, which is a step of a start.

        A thread that a listener wakes would take the interpreter from the start.
        """
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
            if self._is_due:
                self._is_due = False
                soon(super().__call__)  # by another thread, maybe within another such block
