# SPDX-License-Identifier: Apache-2.0
"""Counts how many modules and functions one operation runs through: `./dev check trace`.

What is counted: the modules beneath gpushare/ of which at least one function is called, and those
functions (lambdas, comprehensions and generator expressions count for their module only), without
what runs while a module is imported.

- create and set: in gpushared on a simulated card, on the thread that does what was asked, from the
  request until the answer. What runs anyway (samples of the driver, timers) is kept out by counting
  only what runs in each of seven repetitions, after one that warms caches.
- explain: in a process of its own, from the command line to its end, of a pod that asks in HAMi's
  keys.

`./dev check trace --list` also prints the modules, with the functions of each. The
check fails above LIMITS.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.guard.generate import GeneratedContainer
from tests.guard.nodes import RecordedDaemon
from tests.stack import Stack

from .command import Failure, run

TRACED: Final = Path(__file__).with_name("traced.py")
_REPEATED: Final = 7
_APART_SECONDS: Final = 0.1
_POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "job", "annotations": {"nvidia.com/use-gputype": "H200"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "train:1",
                "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}},
            }
        ]
    },
}


#: How many modules an operation may run through. Two more than counted today where a module may
#: run on either of two threads.
LIMITS: Final = {"create": 39, "set": 30, "explain": 41}


@dataclass(frozen=True)
class TracedCall:
    """One call of a function in a traced program."""

    at: float
    thread: int
    module: str
    name: str

    @property
    def function(self) -> tuple[str, str]:
        """The function, as its module and its name with its line."""
        return self.module, self.name


@dataclass(frozen=True)
class Traced:
    """What one operation ran through: each function as its module and its name with its line."""

    operation: str
    functions: frozenset[tuple[str, str]]

    @property
    def modules(self) -> dict[str, list[str]]:
        """The named functions by module."""
        found: dict[str, list[str]] = {}
        for module, function in sorted(self.functions):
            named = found.setdefault(module, [])
            if not function.startswith("<"):
                named.append(function.partition(":")[0])
        return found

    @property
    def is_over(self) -> bool:
        """Whether it runs through more modules than it may."""
        return len(self.modules) > LIMITS[self.operation]

    def __str__(self) -> str:
        functions = sum(map(len, self.modules.values()))
        most = f", at most {LIMITS[self.operation]}"
        over = "  OVER" if self.is_over else ""
        return (
            f"  {self.operation:<8} {len(self.modules):3} modules{most:<12} "
            f"{functions:4} functions{over}"
        )


def check() -> str:
    """Return the counts; Failure where one is above its limit."""
    if os.geteuid() != 0:
        return "  not counted: gpushared needs root (sudo ./dev check trace)"
    found = trace()
    told = "\n".join(map(str, found))
    if any(one.is_over for one in found):
        raise Failure(f"{told}\nmore modules than they may; ./dev check trace --list has them")
    return told


def main(show_list: bool) -> int:
    """Print the counts, with `show_list` also the modules and functions."""
    for one in trace():
        print(one)
        if show_list:
            for module, functions in one.modules.items():
                print(f"    {module:<46} {' '.join(functions)}")
    return 0


def trace() -> list[Traced]:
    """Trace the three operations."""
    return [*_of_daemon(), _of_explain()]


@dataclass(frozen=True)
class Window:
    """When one operation was at work, in the clock of time.monotonic()."""

    begun: float
    answered: float


def _of_daemon() -> list[Traced]:
    with Stack() as stack, tempfile.TemporaryDirectory() as place:
        out = Path(place) / "calls.json"
        node = RecordedDaemon(stack, {}, wrapper=(sys.executable, str(TRACED), str(out)))
        creates, sets = [], []
        try:
            for number in range(_REPEATED + 1):
                case = GeneratedContainer(
                    f"{number:03}", {"gpushare.io/cores": "30"}, {"GPUSHARE_MEMORY": "4GiB"}
                )
                reply, window = _timed(partial(node.create, case))
                creates.append(window)
                node.bind(reply["key"], case.identity)
                time.sleep(_APART_SECONDS)
                changed = {"memory": "3GiB", "cores": "20"}
                _, window = _timed(partial(node.daemon.set, case.identity, changed))
                sets.append(window)
                node.end(reply["key"], case.identity)
                time.sleep(_APART_SECONDS)
        finally:
            node.close()
        assert stack.daemon is not None
        stack.daemon.stop()
        calls = [TracedCall(*one) for one in json.loads(out.read_text())]
    return [_in_each("create", calls, creates[1:]), _in_each("set", calls, sets[1:])]


def _timed(operation: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], Window]:
    begun = time.monotonic()
    answer = operation()
    answered = time.monotonic()
    if not answer["ok"]:
        raise Failure(f"gpushared refused what is to be counted: {answer}")
    return answer, Window(begun, answered)


def _in_each(operation: str, calls: Sequence[TracedCall], windows: Sequence[Window]) -> Traced:
    """Return what runs in each of `windows` on the thread that does most of it."""
    functions = []
    for window in windows:
        within = [call for call in calls if window.begun <= call.at <= window.answered]
        [(thread, _)] = Counter(call.thread for call in within).most_common(1)
        functions.append(frozenset(call.function for call in within if call.thread == thread))
    return Traced(operation, frozenset.intersection(*functions))


def _of_explain() -> Traced:
    with tempfile.TemporaryDirectory() as place:
        pod, config, out = (Path(place) / name for name in ("pod.json", "gpushare.yaml", "calls"))
        pod.write_text(json.dumps(_POD))
        config.write_text("# as it is installed\n")
        run(sys.executable, TRACED, out, "gpushare", "explain", pod, "--config", config)
        calls = json.loads(out.read_text())
    return Traced("explain", frozenset(TracedCall(*one).function for one in calls))
