# SPDX-License-Identifier: Apache-2.0
"""What of a recording is of the moment or of the place, and what stands for it instead."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gpushare
from tests.stack import Stack

#: Measured, by whatever happens to run meanwhile.
MEASURED: Final = frozenset(
    {"operations", "buckets", "seconds", "cores_used", "cores_source", "throttled", "gpu_seconds"}
    | {"driver_utilization", "utilization", "utilization_source", "gate", "evicted_seconds"}
    | {"throttled_ns", "throttled_seconds", "idle_since"}
    | {"windows", "charged_ns", "overruns", "waited_seconds"}
    | {"queue_oldest_seconds", "queue_waited_seconds", "eviction_seconds", "restore_seconds"}
    | {"driver_seconds"}
)
_PROCESSES: Final = frozenset({"pid", "container_pid", "maker", "scheduler_pid", "scheduler"})
#: Of CLOCK_BOOTTIME, or ticks since the boot; 0 and None mean something else than a time.
_BOOT_TIMES: Final = frozenset(
    {"starttime", "maker_starttime", "expires", "deadline", "since", "at"} | {"ends_in_seconds"}
)
#: What has measured the compute of a container.
_METERS: Final = frozenset({"", "gate", "nvml", "driver"})
#: Logged at the start, or not: an earlier scheduler may be there. It may be faster than the thread
#: that counts events and keeps them.
RACED: Final = "scheduler-started"
_EPOCH_SECONDS: Final = time.time() - 86400.0
_A_MONTH_SECONDS: Final = 32 * 86400.0
_TEXTS: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b(process|processes|pid|PID)( +)\d+"), r"\1\2<pid>"),
    (re.compile(r"^(?:it is gone|its process has ended)$"), "<ended>"),  # whatever looks first
    (re.compile(r"/\.tree-[0-9a-f]{16}"), "/.tree-<tree>"),
    (re.compile(r"\b(\d+\.\d+\.\d+)-[0-9a-f]{12}\b"), r"\1-<build>"),
)


def of_moment(value: Any, key: str = "", *, measured: bool = False) -> Any:
    """Return `value` without times, processes and what is measured; nothing stays nothing."""
    if isinstance(value, dict):
        return {
            name: of_moment(it, name, measured=measured or name in MEASURED)
            for name, it in value.items()
            if (key, name) != ("ended", "uid")  # the process may be gone before it is asked whose
            and not (name == RACED and isinstance(it, int))
        }
    if measured or (key == "source" and isinstance(value, str) and value in _METERS):
        return "<measured>"
    if isinstance(value, list):
        return [of_moment(one, key) for one in value]
    if isinstance(value, str):
        for pattern, stands_for in _TEXTS:
            value = pattern.sub(stands_for, value)
        return value
    if not isinstance(value, int | float) or isinstance(value, bool) or not value:
        return value
    if key in _PROCESSES:
        return "<pid>"
    is_epoch = _EPOCH_SECONDS < value < _EPOCH_SECONDS + _A_MONTH_SECONDS
    return "<time>" if key in _BOOT_TIMES or is_epoch else value


def of_place(found: Any, fixed: Mapping[str, str]) -> Any:
    """Return `found` with each place of `fixed`, and of this tree, as what stands for it."""
    everywhere = {
        **fixed,
        str(Path(gpushare.__file__).parent): "<package>",
        sys.prefix: "<environment>",
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(): "<boot>",
        os.uname().nodename: "<host>",
    }
    text = json.dumps(found)
    for place, stands_for in everywhere.items():
        text = text.replace(place, stands_for)
    return json.loads(text)


def of_stack(found: Any, stack: Stack, names: Mapping[str, str]) -> Any:
    """Return `found` without what is of the moment, or of where a stack has its files."""
    fixed = {
        str(stack.root): "<root>",
        stack.root.name: "<root name>",
        **names,
    }
    return of_place(of_moment(found), fixed)
