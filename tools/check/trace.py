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

The check fails above LIMITS, and prints the modules, with the functions of each.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

from tests.stack import Stack
from tests.system.waiting import wait_until

from .command import Failure, run

TRACED: Final = Path(__file__).with_name("traced.py")
_T = TypeVar("_T")

_REPEATED: Final = 7
_APART_SECONDS: Final = 0.1
_CONTAINER: Final = {
    "ociVersion": "1.0.2",
    "process": {"args": ["sh"], "env": ["GPUSHARE_MEMORY=4GiB"], "cwd": "/", "user": {"uid": 0}},
    "root": {"path": "rootfs"},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    "hooks": {"createRuntime": [{"path": "/bin/true"}]},
    "linux": {
        "namespaces": [{"type": "pid"}, {"type": "mount"}],
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
    },
    "annotations": {"gpushare.io/cores": "30"},
}
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


#: How many modules an operation may run through.
LIMITS: Final = {"create": 35, "set": 15, "explain": 30}


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

    def __str__(self) -> str:
        functions = sum(map(len, self.modules.values()))
        most = f", at most {LIMITS[self.operation]}"
        return (
            f"  {self.operation:<8} {len(self.modules):3} modules{most:<12} {functions:4} functions"
        )


def check() -> str:
    """Return the counts; Failure where one is above its limit."""
    if os.geteuid() != 0:
        return "  not counted: gpushared needs root (sudo ./dev check trace)"
    found = [*_of_daemon(), _of_explain()]
    told = [str(one) for one in found]
    over = [one for one in found if len(one.modules) > LIMITS[one.operation]]
    for one in over:
        told.append(f"{one.operation} runs through more modules than it may:")
        told += [f"    {module:<46} {' '.join(names)}" for module, names in one.modules.items()]
    if over:
        raise Failure("\n".join(told))
    return "\n".join(told)


@dataclass(frozen=True)
class Window:
    """When one operation was at work, in the clock of time.monotonic()."""

    begun: float
    answered: float


def _of_daemon() -> list[Traced]:
    with Stack() as stack, tempfile.TemporaryDirectory() as place, ExitStack() as running:
        out = Path(place) / "calls.json"
        stack.start_daemon(wrapper=(sys.executable, str(TRACED), str(out)))
        asked = ("--memory", "4GiB", "--cores", "30", "--policy", "fixed-share")
        program = [*stack.cli, "run", "--name", "traced", *asked, "--", "cat"]
        cat = subprocess.Popen(program, stdin=subprocess.PIPE, env=stack.environment)
        running.callback(cat.communicate)
        wait_until(lambda: [row["name"] for row in stack.client.tenants()] == ["traced"])
        creates, sets = [], []
        for number in range(_REPEATED + 1):
            folder = Path(place) / f"container-{number}"
            (folder / "rootfs/usr/lib64").mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps(_CONTAINER))
            key, window = _timed(partial(_create, stack.socket, folder))
            creates.append(window)
            # What follows a release is over before the set.
            _timed(partial(stack.client.exchange, "release", {"key": key, "id": folder.name}))
            size = f"{4 + number % 2}GiB"
            _, window = _timed(partial(stack.client.set, "traced", memory=size, cores="20"))
            sets.append(window)
        running.close()
        assert stack.daemon is not None
        stack.daemon.stop()
        calls = [TracedCall(*one) for one in json.loads(out.read_text())]
    return [_in_each("create", calls, creates[1:]), _in_each("set", calls, sets[1:])]


def _create(path: Path, folder: Path) -> str:
    """Ask for a container as the launcher does; return the key of its reservation."""
    fields = {"id": folder.name, "bundle": str(folder), "verb": "create", "marker": "strong"}
    files = [os.open(folder / name, os.O_RDONLY | os.O_DIRECTORY) for name in (".", "rootfs")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(str(path))
        socket.send_fds(link, [json.dumps({"op": "create", **fields}).encode()], files)
        for file in files:
            os.close(file)
        while "ok" not in (answer := json.loads(link.recv(1 << 20))):
            pass
    if not answer["ok"]:
        raise Failure(f"gpushared refused what is to be counted: {answer}")
    return str(answer["key"])


def _timed(operation: Callable[[], _T]) -> tuple[_T, Window]:
    begun = time.monotonic()
    answer = operation()
    window = Window(begun, time.monotonic())
    time.sleep(_APART_SECONDS)
    return answer, window


def _in_each(operation: str, calls: Sequence[TracedCall], windows: Sequence[Window]) -> Traced:
    """Return what runs in each of `windows` on the thread that does most of it."""
    within = [
        [call for call in calls if window.begun <= call.at <= window.answered] for window in windows
    ]
    [(thread, _)] = Counter(call.thread for calls in within for call in calls).most_common(1)
    functions = (
        frozenset(call.function for call in _job([call for call in calls if call.thread == thread]))
        for calls in within
    )
    return Traced(operation, frozenset.intersection(*functions))


def _job(calls: Sequence[TracedCall]) -> Sequence[TracedCall]:
    """Return the longest job of a thread: what it does next belongs to no answer."""
    starts = [place for place, call in enumerate(calls) if call.name.startswith("_run_job:")]
    return max((calls[start:end] for start, end in pairwise([0, *starts, len(calls)])), key=len)


def _of_explain() -> Traced:
    with tempfile.TemporaryDirectory() as place:
        pod, config, out = (Path(place) / name for name in ("pod.json", "gpushare.yaml", "calls"))
        pod.write_text(json.dumps(_POD))
        config.write_text("# as it is installed\n")
        run(sys.executable, TRACED, out, "gpushare", "explain", pod, "--config", config)
        calls = json.loads(out.read_text())
    return Traced("explain", frozenset(TracedCall(*one).function for one in calls))
