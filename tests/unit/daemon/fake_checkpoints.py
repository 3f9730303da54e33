# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoint API as a dictionary, with faults that a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpushare.daemon.eviction import worker_main as api
from gpushare.daemon.eviction.checkpoint_client import CheckpointClient, CheckpointError


@dataclass
class FakeCheckpoints(CheckpointClient):
    """States by pid; a process that is not in it runs."""

    states: dict[int, int] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    faults: dict[tuple[str, int], CheckpointError] = field(default_factory=dict)  # used up
    leaves: dict[tuple[str, int], int] = field(default_factory=dict)  # the state after a fault
    pairs: list[tuple[tuple[str, str], ...]] = field(default_factory=list)
    during: Callable[[str, int], None] = lambda *_: None
    driver_seconds: float = 0.0
    patience: list[float] = field(default_factory=list)  # seconds that each lock had

    def state(self, pid: int) -> int:
        return self.states.get(pid, api.RUNNING)

    def lock(self, pids: Sequence[int], seconds: float = 20.0) -> list[CheckpointError | None]:
        self.patience.append(seconds)
        found: list[CheckpointError | None] = []
        for pid in pids:
            try:
                self._step("lock", pid, api.RUNNING, api.LOCKED)
            except CheckpointError as error:
                found.append(error)
            else:
                found.append(None)
        return found

    def checkpoint(self, pid: int, size_bytes: int) -> None:
        del size_bytes
        self._step("checkpoint", pid, api.LOCKED, api.CHECKPOINTED)

    def restore(self, pid: int, size_bytes: int, pairs: Sequence[tuple[str, str]] = ()) -> None:
        del size_bytes
        self.pairs.append(tuple(pairs))
        self._step("restore", pid, api.CHECKPOINTED, api.LOCKED)

    def unlock(self, pid: int) -> None:
        self._step("unlock", pid, api.LOCKED, api.RUNNING)

    def close(self) -> None:
        self.calls.append(("close", 0))

    def _step(self, name: str, pid: int, before: int, after: int) -> None:
        self.calls.append((name, pid))
        self.during(name, pid)
        if (name, pid) in self.faults:
            self.states[pid] = self.leaves.get((name, pid), self.state(pid))
            raise self.faults.pop((name, pid))
        if self.state(pid) != before:
            raise CheckpointError(f"{name}: CUDA_ERROR_ILLEGAL_STATE", api.ILLEGAL_STATE)
        self.states[pid] = after
