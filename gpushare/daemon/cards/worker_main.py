# SPDX-License-Identifier: Apache-2.0
"""The NVML worker: the process that calls NVML, so that gpushared never hangs in it.

It answers one question after another on descriptor 3, and ends with gpushared: by the signal that
the kernel sends at its death, and where that comes too early by the end of the connection. Started
by worker_process.py as `python -I -S`; it imports little, for it is to be small.

A message in either direction is a line of JSON. The worker runs a vendor's library:
what it says is read as text with a bound, and taken for true nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Collection
from typing import Any, Final, TypeAlias

from gpushare.daemon.core import privileges

CONNECTION: Final = 3

#: The first returns what has a method for each question, with the library at a path; the second is
#: the answer where one raises.
WorkerCalls: TypeAlias = tuple[Callable[[str], Any], Callable[[Exception], dict[str, Any]]]


def main() -> None:
    """Answer what is asked of NVML until gpushared hangs up."""
    run_worker("NVML", privileges.NVML_WORKER, _calls)


def _calls() -> WorkerCalls:
    from gpushare.daemon.cards import nvml_calls  # noqa: PLC0415 - once privileges are given up

    return nvml_calls.Devices, nvml_calls.failure


def run_worker(name: str, capabilities: Collection[int], calls: Callable[[], WorkerCalls]) -> None:
    """Answer until gpushared hangs up, without the other capabilities."""
    # A terminal's ^C is for gpushared, which hangs up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    privileges.die_with_parent()
    try:
        privileges.limit_to(capabilities)
    except OSError as error:
        sys.stderr.write(f"gpushared: the {name} worker keeps its capabilities: {error}\n")
    with contextlib.suppress(WorkerClosed):
        _serve(*calls())


def _serve(load: Callable[[str], Any], failure: Callable[[Exception], dict[str, Any]]) -> None:
    loaded: Any = None
    while True:
        question = read_message(CONNECTION)
        arguments: dict[str, Any] = question["with"]
        try:
            if question["ask"] == "load":
                os.environ.update(arguments["env"])
                loaded = load(arguments["library"])
                answer = loaded.describe()
            else:
                answer = getattr(loaded, question["ask"])(**arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, gpushared has to hear of it
            answer = failure(error)
        write_message(CONNECTION, {"number": question["number"], "answer": answer})


#: 16 cards of 1024 processes each are 1 MiB.
_MOST_BYTES: Final = 8 << 20


class InvalidMessage(ValueError):
    """Bytes that are no message came."""


class WorkerClosed(ConnectionError):
    """The other end is gone."""


def write_message(descriptor: int, message: dict[str, Any]) -> None:
    """Write one message; WorkerClosed if the reader closed."""
    left = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except (BrokenPipeError, ConnectionResetError) as error:
            raise WorkerClosed(str(error)) from error


def read_message(descriptor: int, wait: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Return the next message; InvalidMessage, WorkerClosed, and what `wait` raises."""
    text = bytearray()
    while not text.endswith(b"\n"):
        wait()
        try:
            part = os.read(descriptor, 1 << 16)
        except ConnectionResetError as error:
            raise WorkerClosed(str(error)) from error
        if not part:
            raise WorkerClosed("it closed the connection")
        text += part
        if len(text) > _MOST_BYTES:
            raise InvalidMessage(f"a message of more than {_MOST_BYTES} bytes")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(str(error)) from error
    if not isinstance(message, dict):
        raise InvalidMessage(f"a message is an object, not {type(message).__name__}")
    return message
