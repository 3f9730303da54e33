# SPDX-License-Identifier: Apache-2.0
"""The NVML worker: the process that calls NVML, so that gpushared never hangs in it.

It answers one question after another on descriptor 3, and ends with gpushared: by the signal that
the kernel sends at its death, and where that comes too early by the end of the connection. Started
by worker_process.py as `python -I -S`; it imports little, for it is to be small.

A message in either direction is a length, then that much JSON. The worker runs a vendor's library:
what it says is read as text with a bound, and taken for true nowhere.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from gpushare.daemon.core import privileges

CONNECTION: Final = 3


def main() -> None:
    """Answer until gpushared hangs up."""
    # A terminal's ^C is for gpushared, which hangs up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    privileges.die_with_parent()
    try:
        privileges.limit_to(privileges.NVML_WORKER)
    except OSError as error:
        sys.stderr.write(f"gpushared: the NVML worker keeps its capabilities: {error}\n")
    try:
        serve(CONNECTION)
    except WorkerClosed:
        return


def serve(descriptor: int) -> None:
    """Answer the questions that come on `descriptor`; WorkerClosed at their end."""
    # After privileges are given up.
    from gpushare.daemon.cards import nvml_calls  # noqa: PLC0415

    loaded: nvml_calls.Devices | None = None
    while True:
        question = read_message(descriptor)
        arguments: dict[str, Any] = question["with"]
        answer: dict[str, Any]
        try:
            if question["ask"] == "load":
                os.environ.update(arguments["env"])
                loaded = nvml_calls.Devices(arguments["library"])
                answer = loaded.describe()
            else:
                answer = getattr(loaded, question["ask"])(**arguments)
        except nvml_calls.NvmlError as error:
            no_limits = error.code in nvml_calls.NO_LIMITS
            answer = {"error": str(error), "code": error.code, "no_limits": no_limits}
        except Exception as error:  # noqa: BLE001 - what a library says may be no text, no list
            answer = {"error": f"NVML sent a response in an unknown format: {error!r}", "code": 0}
        write_message(descriptor, {"number": question["number"], "answer": answer})


_LENGTH: Final = struct.Struct("<I")
#: 16 cards of 1024 processes each are 1 MiB.
_MOST_BYTES: Final = 8 << 20


class InvalidMessage(ValueError):
    """What came is no message."""


class WorkerClosed(ConnectionError):
    """The other end is gone."""


def write_message(descriptor: int, message: dict[str, Any]) -> None:
    """Write one message; WorkerClosed if the reader closed."""
    text = json.dumps(message, separators=(",", ":")).encode()
    left = memoryview(_LENGTH.pack(len(text)) + text)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except (BrokenPipeError, ConnectionResetError) as error:
            raise WorkerClosed(str(error)) from error


def read_message(descriptor: int, wait: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Return the next message; InvalidMessage, WorkerClosed, and what `wait` raises."""
    (length,) = _LENGTH.unpack(_read(descriptor, _LENGTH.size, wait))
    if length > _MOST_BYTES:
        raise InvalidMessage(f"a message of {length} bytes")
    try:
        message = json.loads(_read(descriptor, length, wait))
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(str(error)) from error
    if not isinstance(message, dict):
        raise InvalidMessage(f"a message is an object, not {type(message).__name__}")
    return message


def _read(descriptor: int, length: int, wait: Callable[[], None]) -> bytes:
    parts = []
    while length > 0:
        wait()
        try:
            part = os.read(descriptor, min(length, 1 << 16))
        except ConnectionResetError as error:
            raise WorkerClosed(str(error)) from error
        if not part:
            raise WorkerClosed("it closed the connection")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
