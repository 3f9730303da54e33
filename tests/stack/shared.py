# SPDX-License-Identifier: Apache-2.0
"""A stack that tests have one after the other: each finds it empty, and is asked what it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from gpushare.errors import UserError
from gpushare.verify.runners import Containerd, Docker

from .remains import remains
from .stack import Stack

#: How long what ends with a test may take to be gone.
SETTLE_SECONDS: Final = 60.0
_SERVICES: Final = ("place", "gpushared", "containerd", "dockerd")


class SharedStack:
    """What `make` returns, with its engines; another one after a test that has spoilt it."""

    def __init__(self, make: Callable[[], Stack], *docker_flags: str) -> None:
        self._make = make
        self._docker_flags = docker_flags
        self._stack: Stack | None = None
        self._containerd: Containerd | None = None
        self._docker: Docker | None = None

    def __enter__(self) -> SharedStack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def lent(self) -> Iterator[Stack]:
        """Lend it, with a daemon, to one test; AssertionError with what that has left."""
        stack = self.stack
        config = stack.config.read_text()
        try:
            yield stack
        except BaseException:
            self.close()
            raise
        for name, program in stack.programs:
            if name not in _SERVICES:
                program.stop()
        left = _settled(stack)
        if stack.config.read_text() != config:
            left.append("another gpushare.yaml")
        if left:
            self.close()
            raise AssertionError(f"the test has left: {', '.join(left)}")

    @property
    def stack(self) -> Stack:
        """The present one."""
        if self._stack is None:
            self._stack = self._make()
            if self._stack.daemon is None:
                self._stack.start_daemon()
        return self._stack

    @property
    def containerd(self) -> Containerd:
        """Its containerd, with the probe's image."""
        if self._containerd is None:
            self._containerd = self.stack.start_containerd()
            self._containerd.prepare(self.stack.installation.probe)
        return self._containerd

    @property
    def docker(self) -> Docker:
        """Its dockerd, on its containerd, with the probe's image."""
        if self._docker is None:
            assert self.containerd.env  # it runs on that
            self._docker = self.stack.start_docker(*self._docker_flags)
            self._docker.prepare(self.stack.installation.probe)
        return self._docker

    def close(self) -> None:
        """End it and all that is in it; the next use makes another one."""
        stack, self._stack, self._containerd, self._docker = self._stack, None, None, None
        if stack is None:
            return
        with suppress(UserError):
            # Those of `gpushare run` are in no cgroup of the stack.
            for row in stack.client.tenants():
                stack.client.stop(row["key"], "KILL", 0)
        stack.close()


def _settled(stack: Stack) -> list[str]:
    """Return what is left once nothing is, or after SETTLE_SECONDS."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (left := remains(stack)) and stack.is_serving and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
