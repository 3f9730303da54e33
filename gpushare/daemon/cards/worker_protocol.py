# SPDX-License-Identifier: Apache-2.0
"""Messages between gpushared and its NVML worker: a length, then that much JSON.

The worker runs a vendor's library; what it says is read as text with a bound, and taken for true
nowhere. Imported by the worker, so it imports what costs little.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from typing import Any, Final

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
