# SPDX-License-Identifier: Apache-2.0
"""What a create costs gpushared: processor time of all its threads, and the wait for its answer.

The requests are the launcher's, without a launcher and without a low-level runtime. Of a known
image beside one that gpushared has never seen.
"""

from __future__ import annotations

import array
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpushare import protocol
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .create import CACHE, Layered, read_cache, start, unseen_cache
from .result import Result
from .turns import BenchError, Times, take

ROUNDS = 100
SETTLE_SECONDS = 0.1  # in which gpushared does what follows an answer


def measure() -> Iterator[Result]:
    """Take a known and an unseen image in turns."""
    with Stack() as stack:
        start(stack)
        known, unseen = (
            Bundle(stack, quota={"memory": "4GiB"}, files={str(CACHE): CACHE.read_bytes()})
            for _ in range(2)
        )
        series = take(
            {
                "known": _created(stack, known, read_cache),
                "unseen": _created(stack, unseen, unseen_cache),
            },
            ROUNDS,
        )
    for part, name in (("cpu", "processor"), ("wait", "wait")):
        yield series.compare(
            part, "known", "unseen", name=f"gpushared's create, {name}: known image", budget=None
        )


def _created(stack: Stack, bundle: Bundle, cache: Callable[[], bytes]) -> Callable[[], Times]:
    layered = Layered(bundle)

    def go() -> Times:
        layered.renew(cache())
        time.sleep(SETTLE_SECONDS)
        assert stack.daemon is not None
        pid, identity = stack.daemon.process.pid, f"bench-{secrets.token_hex(4)}"
        flags = os.O_RDONLY | os.O_DIRECTORY
        fds = [os.open(path, flags) for path in (bundle.path, bundle.rootfs)]
        fields = {"op": "create", "id": identity, "bundle": str(bundle.path), "marker": "strong"}
        try:
            before = _processor_ms(pid)
            answer, wait = _ask(stack.socket, fields, fds)
            used = _processor_ms(pid) - before
        finally:
            for fd in fds:
                os.close(fd)
        _ask(stack.socket, {"op": "release", "key": answer["key"], "id": identity}, ())
        return {"cpu": used, "wait": wait}

    return go


def _processor_ms(pid: int) -> float:
    """Return the processor time of all threads of a process, by the scheduler's clock."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e6


def _ask(path: Path, fields: dict[str, Any], fds: list[int] | tuple[()]) -> tuple[Any, float]:
    """Send a request and return the answer, and the milliseconds that it took."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))
        begun = time.perf_counter_ns()
        client.sendmsg([protocol.encode(fields)], rights)
        answer = {"ack": True}
        while "ack" in answer:
            answer = json.loads(client.recv(protocol.MAX_REPLY_BYTES))
        took = time.perf_counter_ns() - begun
    if not answer.get("ok"):
        raise BenchError(f"gpushared refused: {answer}")
    return answer, took / 1e6
