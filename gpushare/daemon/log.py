# SPDX-License-Identifier: Apache-2.0
"""The log: one JSON object a line on stderr, each with a stable `event` name.

Values may come from a tenant; json escapes every control character, so none can forge a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

#: Who else is told: (seconds since the epoch, event, level, fields). They return at once.
Sink = Callable[[float, str, str, Mapping[str, Any]], None]

_LEVELS: Final = frozenset({"debug", "info", "warning", "error"})
_STDERR: Final = 2
_encode: Final = json.JSONEncoder(separators=(",", ":"), default=str).encode
_sinks: tuple[Sink, ...] = ()
_lock = threading.RLock()  # a signal's handler logs in the midst of another line
_counts: Counter[str] = Counter()


def attach(sink: Sink) -> None:
    """Tell `sink` of every event from now on."""
    global _sinks  # noqa: PLW0603 - there is one log
    _sinks = (*_sinks, sink)


def detach(sink: Sink) -> None:
    """Tell `sink` no more."""
    global _sinks  # noqa: PLW0603 - as above
    _sinks = tuple(one for one in _sinks if one != sink)


def counted(event: str) -> int:
    """Return how often `event` was logged, since this process began."""
    return _counts[event]


def log(event: str, level: str = "info", **fields: Any) -> None:
    """Write one line; `event` is a noun and a verb, `tenant-bound`, that never changes.

    A full or closed stderr loses the line: the daemon goes on.
    """
    assert level in _LEVELS
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
    line = _encode({"time": stamp, "level": level, "event": event, **fields})
    with contextlib.suppress(OSError):
        os.write(_STDERR, line.encode() + b"\n")
    with _lock:
        _counts[event] += 1
    for sink in _sinks:
        sink(now, event, level, fields)
