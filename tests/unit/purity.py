# SPDX-License-Identifier: Apache-2.0
"""What a test does besides computing: whether it starts threads or processes, or waits."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

_REPOSITORY = str(Path(__file__).parents[2])
_EVENTS = {
    "os.exec": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "pty.spawn": "starts a process",
    "socket.__new__": "opens a socket",
    "subprocess.Popen": "starts a process",
}

#: The list of the test that runs. None, and nothing is recorded, outside tests/unit.
_found: list[str] | None = None


def _audit(event: str, _arguments: tuple[Any, ...]) -> None:
    if _found is not None and event in _EVENTS:
        _found.append(f"{_EVENTS[event]} at {_caller(sys._getframe(1))}")


def _caller(frame: FrameType | None) -> str:
    """Return the innermost line of ours."""
    while frame and not frame.f_code.co_filename.startswith(_REPOSITORY):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "a place outside the tree"


def _recorded(called: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Return `called` for Pythons that have no audit event for it."""

    @functools.wraps(called)
    def call(*arguments: Any, **named: Any) -> Any:
        if _found is not None:
            _found.append(f"{what} at {_caller(sys._getframe(1))}")
        return called(*arguments, **named)

    return call


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Record what the block does."""
    global _found  # noqa: PLW0603 - an audit hook cannot be removed, and is one for all
    found: list[str] = []
    _found = found
    try:
        yield found
    finally:
        _found = None


def watch() -> None:
    """Have recorded() see everything: modules imported later may keep a name of `time`."""
    if hasattr(time.sleep, "__wrapped__"):
        return
    sys.addaudithook(_audit)
    threading.Thread.start = _recorded(  # type: ignore[method-assign]
        threading.Thread.start, "starts a thread"
    )
    time.sleep = _recorded(time.sleep, "sleeps")
