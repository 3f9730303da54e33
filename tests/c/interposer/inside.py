# SPDX-License-Identifier: Apache-2.0
"""Runs a test, or a part of it, in a process of a container: forked, with the filter to load.

It ends as programs do, through exit(3).
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import select
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from .container import ProgramContainer, bound

PATIENCE_SECONDS = 10


class ForkedProcess:
    """A process of `container` that runs `body`, and says what it has to say on standard error."""

    def __init__(
        self, container: ProgramContainer, body: Callable[[], object], *keeps: int
    ) -> None:
        self.returncode: int | None = None
        self._said = os.memfd_create("said")
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(container, parent, keeps)
                body()
                ctypes.CDLL(None).exit(0)
            except BaseException:  # noqa: BLE001 - whatever it is, the test's process tells it
                os.write(self._said, traceback.format_exc().encode())
            finally:
                os._exit(1)

    def _become(self, container: ProgramContainer, parent: int, keeps: tuple[int, ...]) -> None:
        bound()
        if os.getppid() != parent:
            os._exit(1)
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        os.dup2(self._said, 2)
        opened = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
        for number in opened:  # as after an exec
            if number > 2 and number not in (self._said, *keeps):
                with suppress(OSError):
                    os.close(number)
        environment = container.environment()
        os.environ.clear()
        os.environ.update(environment)

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        return self._status(os.WNOHANG)

    def wait(self) -> int:
        """Return its exit status once it has ended."""
        status = self._status(0)
        assert status is not None
        return status

    def _status(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def end(self) -> None:
        """Let it end by itself, as it does when nobody speaks to it; kill one that waits."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            select.select([descriptor], [], [], PATIENCE_SECONDS)
            os.close(descriptor)
        self.close()

    def said(self) -> str:
        """Return what it has said so far."""
        return os.pread(self._said, 1 << 20, 0).decode()

    def close(self) -> None:
        """Kill it, and let go of what it said."""
        self.kill()
        os.close(self._said)


def run_inside(container: ProgramContainer, body: Callable[[], object]) -> None:
    """Run `body` in a process of `container`, where it may not say anything."""
    process = ForkedProcess(container, body)
    try:
        status, said = process.wait(), process.said()
    finally:
        process.close()
    if status or said:
        pytest.fail(f"its process ended with {status}, and said:\n{said}", pytrace=False)


def inside(name: str = "simulated") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test in a process of the container that fixture `name` makes; it may not say anything.

    The test has the fixture as an argument if it asks for it.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures: object) -> None:
            container = fixtures[name]
            assert isinstance(container, ProgramContainer)
            wanted = {key: fixtures[key] for key in signature.parameters}
            run_inside(container, lambda: test(**wanted))

        if name not in signature.parameters:
            asked = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
            signature_of_run = [*signature.parameters.values(), asked]
            run.__signature__ = signature.replace(parameters=signature_of_run)  # type: ignore[attr-defined]
        return run

    return decorate
