# SPDX-License-Identifier: Apache-2.0
"""The checkpoint API through the eviction worker, with a deadline for each call; one thread's.

The worker is started when it is first needed, kept (a program that loads the library anew for each
call takes seconds: ai-dynamo/dynamo PR 7773) until the driver is released. One that does not
answer in time is killed. Whether its call has had an effect, `state` of the next worker tells.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any, Final

from gpushare.daemon.cards import worker_process
from gpushare.daemon.cards.driver_client import DriverError
from gpushare.daemon.cards.worker_process import WorkerProcess, python_command
from gpushare.daemon.core.log import log
from gpushare.daemon.eviction.worker_main import SUCCESS
from gpushare.daemon.node import LoadedDriver

#: Deadlines in seconds. NVIDIA publishes no times. In production even the state of a process took
#: more than 5 s (modal-client PR 3835), and CRIU's 10 s interrupted locks (cuda-checkpoint issue
#: 26). A copy has been seen at 0.5 GiB/s and more; an H100 took 0.65 s per GiB.
LOAD_SECONDS: Final = 60.0
STATE_SECONDS: Final = 30.0
LOCK_SECONDS: Final = 20.0  # for the process to complete its work; an endless kernel never does
COPY_SECONDS: Final = 180.0
COPY_SECONDS_PER_GIB: Final = 2.0
_GIB: Final = 1 << 30

_FIRST: Final = 570
_FIRST_MOVES: Final = 580
_FIRST_AARCH64: Final = 595
#: Killing a restored process hung the host 35 s later, four times of four, with 595.71.05
#: (NVIDIA/cuda-checkpoint issue 53, open).
KILL_HANGS: Final = 595


class CheckpointError(Exception):
    """The driver refused, or did not answer; `code` is a CUresult, 0 without an answer.

    `is_final`: it has lost the process's memory, and every further call fails.
    """

    def __init__(self, text: str, code: int = 0, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.is_final = is_final


def why_unsupported(driver_version: str, machine: str = platform.machine()) -> str:
    """Return why a driver cannot evict, "" if it can."""
    major = major_version(driver_version)
    if major < _FIRST:
        return f"driver {driver_version} has no checkpoint API; {_FIRST} or newer has"
    if machine == "aarch64" and major < _FIRST_AARCH64:
        return f"driver {driver_version} has no checkpoint on aarch64; {_FIRST_AARCH64} or newer"
    return ""


def why_no_moves(driver_version: str, machine: str = platform.machine()) -> str:
    """Return why a driver cannot restore to another card, "" if it can."""
    why = why_unsupported(driver_version, machine)
    if not why and major_version(driver_version) < _FIRST_MOVES:
        why = (
            f"driver {driver_version} restores memory only to its own card; {_FIRST_MOVES} or "
            "newer can move it"
        )
    return why


def major_version(driver_version: str) -> int:
    """Return 580 of "580.65.06"; 0 if it is no version."""
    major = driver_version.partition(".")[0]
    return int(major) if major.isdecimal() else 0


class CheckpointClient:
    """Asks the worker for the driver that `driver` returns; each method raises CheckpointError.

    `excuse` is called with the worker's pid.
    """

    def __init__(
        self, driver: Callable[[], LoadedDriver], excuse: Callable[[int], None] = lambda _: None
    ) -> None:
        self._driver = driver
        self._excuse = excuse
        self._worker: WorkerProcess | None = None
        self._loaded: object = None  # the driver that the worker has loaded
        self.driver_seconds = 0.0  # of all calls, by the worker

    def state(self, pid: int) -> int:
        """Return the state of a process: RUNNING and so on."""
        return int(self._answered("state", {"pid": pid}, STATE_SECONDS)["state"])

    def lock(
        self, pids: Sequence[int], seconds: float = LOCK_SECONDS
    ) -> list[CheckpointError | None]:
        """Lock all of `pids`; return for each why it is not locked, None: it is.

        The work that each process has submitted is completed first, for which it has `seconds`.
        """
        arguments = {"pids": list(pids), "timeout_ms": int(seconds * 1000)}
        answers = self._ask("lock", arguments, seconds + STATE_SECONDS)["answers"]
        took = (float(answer.get("seconds", 0.0)) for answer in answers)
        self.driver_seconds += max(took, default=0.0)
        return [_error("lock", answer) for answer in answers]

    def checkpoint(self, pid: int, size_bytes: int) -> None:
        """Move the memory of a locked process, about `size_bytes`, to host memory."""
        self._answered("checkpoint", {"pid": pid}, _copy_seconds(size_bytes))

    def restore(self, pid: int, size_bytes: int, pairs: Sequence[tuple[str, str]] = ()) -> None:
        """Move it back; `pairs` has each card's UUID with that of the card in its place."""
        arguments = {"pid": pid, "pairs": [list(pair) for pair in pairs]}
        self._answered("restore", arguments, _copy_seconds(size_bytes))

    def unlock(self, pid: int) -> None:
        """Let a locked process go on."""
        self._answered("unlock", {"pid": pid}, STATE_SECONDS)

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _answered(self, call: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
        answer = self._ask(call, arguments, seconds)
        self.driver_seconds += float(answer.get("seconds", 0.0))
        error = _error(call, answer)
        if error is not None:
            raise error
        return answer

    def _ask(self, call: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
        driver = self._driver()
        if self._worker is not None and self._loaded != _named(driver):
            self.close()
        try:
            if self._worker is None:
                self._start(driver)
            answer = self._call(call, arguments, seconds)
        except DriverError as error:
            pid = 0 if self._worker is None else self._worker.pid
            log("eviction-worker-lost", "warning", pid=pid, call=call, reason=str(error))
            self.close()
            raise CheckpointError(f"{call}: {error}") from error
        return answer

    def _start(self, driver: LoadedDriver) -> None:
        self._worker = worker_process.start_worker(python_command("eviction"), "eviction worker")
        self._excuse(self._worker.pid)
        arguments = {"library": str(driver.files.cuda.host_path), "env": driver.env}
        answer = self._call("load", arguments, LOAD_SECONDS)
        if not answer.get("has_api"):
            self.close()
            version = driver.nvml.driver_version
            raise CheckpointError(f"the libcuda of driver {version} has no checkpoint API")
        self._loaded = _named(driver)

    def _call(self, call: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._worker is not None
        answer = self._worker.ask(call, arguments, seconds)
        if "fault" in answer:
            raise DriverError(str(answer["fault"]))
        return answer


def _named(driver: LoadedDriver) -> object:
    """Return what a worker has loaded of a driver."""
    return driver.files.cuda.host_path, driver.env, driver.nvml.driver_version


def _copy_seconds(size_bytes: int) -> float:
    return COPY_SECONDS + COPY_SECONDS_PER_GIB * size_bytes / _GIB


def _error(call: str, answer: dict[str, Any]) -> CheckpointError | None:
    code = int(answer.get("code", -1))
    if code == SUCCESS:
        return None
    return CheckpointError(f"{call}: {answer.get('error') or f'error {code}'}", code)
