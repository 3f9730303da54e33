# SPDX-License-Identifier: Apache-2.0
"""Many containers that are created at once, as after a node's restart."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .bundle import Bundle
from .stack import Stack

_DELETED_AT_ONCE: Final = 8


@dataclass(frozen=True)
class Created:
    """How one create went: its process, exit status, message, and when it began and ended (ns)."""

    pid: int
    status: int
    said: str
    begun: int
    ended: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended - self.begun) / 1e9


class Crowd:
    """`count` bundles on a tmpfs, where engines keep theirs."""

    def __init__(self, stack: Stack, count: int, quota: Mapping[str, str]) -> None:
        self._stack = stack
        folder = stack.root / "bundles"
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
        self.bundles = [Bundle(stack, quota=quota) for _ in range(count)]

    def create(self, program: str, environment: Mapping[str, str]) -> list[Created]:
        """Create all at once by `program`, and return when the last is done."""
        logs = [bundle.path / "output" for bundle in self.bundles]
        begun: dict[int, tuple[Path, int]] = {}
        for bundle, log in zip(self.bundles, logs, strict=True):
            bundle.save()
            words = bundle.argv("create", "--bundle", str(bundle.path), bundle.id, runtime=program)
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ]
            now = time.monotonic_ns()
            pid = os.posix_spawn(words[0], words, dict(environment), file_actions=actions)
            begun[pid] = log, now
        return [_ended(pid, *begun[pid]) for pid in _in_order_of_their_ends(begun)]

    def remove(self) -> None:
        """Delete every container, some at a time: a runtime waits for the kernel mostly."""
        with ThreadPoolExecutor(max_workers=_DELETED_AT_ONCE) as pool:
            list(pool.map(Bundle.remove, self.bundles))


def _in_order_of_their_ends(children: Iterable[int]) -> Iterator[int]:
    with selectors.DefaultSelector() as ends:
        for pid in children:
            ends.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        while ends.get_map():
            for key, _ in ends.select():
                ends.unregister(key.fd)
                os.close(key.fd)
                yield key.data


def _ended(pid: int, log: Path, begun: int) -> Created:
    ended = time.monotonic_ns()
    _, status = os.waitpid(pid, 0)
    said = log.read_text(errors="replace")
    return Created(pid, os.waitstatus_to_exitcode(status), said, begun, ended)
