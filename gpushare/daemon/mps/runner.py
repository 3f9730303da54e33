# SPDX-License-Identifier: Apache-2.0
"""Keeps the control daemon of one card running: started, watched, restarted with back-off.

It outlives gpushared, as the containers do. A later gpushared finds it by the file in its folder,
and goes on with it. It is never one that somebody else has started: those are refused.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from gpushare.daemon.core.log import log
from gpushare.daemon.identity import processes
from gpushare.daemon.mps.control import MpsControl, control_of
from gpushare.daemon.mps.model import MpsError
from gpushare.daemon.mps.process import CardFolders, ControlProcess, last_output
from gpushare.daemon.mps.program import ControlProgram, has_static_partitions, protocol_of
from gpushare.daemon.placement.model import Card
from gpushare.daemon.state import DaemonState

#: What has happened since the last look. "adopted": an earlier gpushared's was found.
RunChange = Literal["", "started", "adopted", "ended"]

_FIRST_WAIT_SECONDS: Final = 0.5
_LONGEST_WAIT_SECONDS: Final = 60.0
_STEADY_SECONDS: Final = 60.0  # after which a restart is the first again
_READY_SECONDS: Final = 30.0  # without persistence mode, a card takes long to initialize
_QUIT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.05
_NAME: Final = "nvidia-cuda-mps"  # of server and control daemon, as the kernel shortens it


class ControlRunner:
    """The control daemon of `card`; all of it is the card's thread's.

    `control` is None while none answers, and `fault` says why no container can have it now.
    """

    def __init__(self, card: Card, program: Path, state: DaemonState, *, partitions: bool) -> None:
        self.control: MpsControl | None = None
        self.fault = ""
        self.folders = CardFolders.of(state.node.config.run_dir, card.uuid)
        self._card = card
        self._program = program
        self._state = state
        self._partitions = partitions
        self._process: ControlProcess | None = None
        self._wait_seconds = _FIRST_WAIT_SECONDS
        self._started = 0.0
        self._next_start = 0.0
        self._has_multiuser = True  # until the driver refuses it
        self._is_first = True

    @property
    def pid(self) -> int:
        """The process, 0 while none runs."""
        return 0 if self._process is None else self._process.pid

    @property
    def pidfd(self) -> int:
        """Readable once it has ended; -1 while none runs."""
        return -1 if self._process is None else self._process.pidfd

    def look(self) -> RunChange:
        """Start what has to run, and say what has changed."""
        change: RunChange = ""
        if self._process is not None and self._process.has_ended():
            pid = self._process.pid
            self._forget()
            self._failed(f"process {pid} has ended")
            change = "ended"
        if self._is_first:
            self._is_first = False
            if self._adopt():
                change = "adopted"
        foreign = self._foreign_server()
        if self._process is None and not foreign and time.monotonic() >= self._next_start:
            return "started" if self._start() else change
        if foreign:
            self.fault = (
                f"an MPS server that gpushare did not start uses it (process {foreign}): stop it "
                "with its own nvidia-cuda-mps-control"
            )
        elif self.control is not None:
            self.fault = ""
        return change

    def keep(self, grants: list[dict[str, Any]]) -> None:
        """Write what a later gpushared has to know."""
        if self._process is None or self.control is None:
            return
        program = self.control.program
        try:
            self.folders.write_state(
                {
                    "pid": self._process.pid,
                    "starttime": self._process.starttime,
                    "protocol": program.protocol,
                    "multiuser": program.multiuser,
                    "static": program.static,
                    "grants": grants,
                }
            )
        except OSError as error:
            log("mps-command-failed", "warning", card=self._card.uuid, error=str(error))

    def kept(self) -> list[dict[str, Any]]:
        """Return the grants that were kept last."""
        found = self.folders.read_state().get("grants")
        return found if isinstance(found, list) else []

    def stop(self) -> None:
        """End it: the card is not in MPS mode any more."""
        process, control = self._process, self.control
        if process is None:
            return
        try:
            if control is not None:
                control.quit(_QUIT_SECONDS)
        except MpsError as error:
            log("mps-command-failed", "warning", card=self._card.uuid, error=str(error))
        if not process.wait(2 * _QUIT_SECONDS):
            process.kill()
        log("mps-control-stopped", card=self._card.uuid, pid=process.pid)
        self._forget()

    def close(self) -> None:
        """Leave it running, for a later gpushared."""
        if self._process is not None:
            self._process.close()
        self._process = self.control = None

    def _start(self) -> bool:
        """Start one, and wait until it answers; whether it does."""
        self._started = time.monotonic()
        try:
            self.folders.make()
            program = self._new_program()
            process = self._process = ControlProcess.start(program, self.folders)
        except (OSError, MpsError) as error:
            self._failed(str(error))
            return False
        control = control_of(program)
        while not control.is_ready():
            if process.has_ended() or time.monotonic() > self._started + _READY_SECONDS:
                return self._give_up(process, program)
            time.sleep(_POLL_SECONDS)
        self.control, self.fault = control, ""
        log(
            "mps-control-started",
            card=self._card.uuid,
            pid=process.pid,
            protocol=program.protocol,
            multiuser=program.multiuser,
        )
        return True

    def _give_up(self, process: ControlProcess, program: ControlProgram) -> bool:
        """Give up one that does not answer, and try it without multiuser; whether that answers."""
        has_ended, why = process.has_ended(), last_output(self.folders)
        process.kill()
        self._forget()
        if has_ended and program.multiuser:
            self._has_multiuser = False  # a driver that does not know the option ends at once
            return self._start()
        self._has_multiuser = True
        self._failed(f"it does not answer{': ' if why else ''}{why}")
        return False

    def _failed(self, why: str) -> None:
        """Note why none runs, and when the next one is tried."""
        if time.monotonic() - self._started > _STEADY_SECONDS:
            self._wait_seconds = _FIRST_WAIT_SECONDS
        self._next_start = time.monotonic() + self._wait_seconds
        log(
            "mps-control-failed",
            "error",
            card=self._card.uuid,
            error=why,
            retry_seconds=self._wait_seconds,
        )
        self._wait_seconds = min(2 * self._wait_seconds, _LONGEST_WAIT_SECONDS)
        self.fault = f"its MPS control daemon does not run: {why}"

    def _adopt(self) -> bool:
        """Go on with the one that an earlier gpushared has started, if it runs and answers."""
        found = self.folders.read_state()
        try:
            process = ControlProcess(int(found["pid"]), int(found["starttime"]))
            program = replace(
                self._new_program(), protocol=found["protocol"], multiuser=bool(found["multiuser"])
            )
        except (ProcessLookupError, LookupError, TypeError, ValueError, MpsError):
            return False
        control = control_of(program)
        if found.get("static") != program.static or not control.is_ready():
            process.kill()
            process.close()
            return False
        self._process, self.control = process, control
        self._started, self.fault = time.monotonic(), ""
        log("mps-control-adopted", card=self._card.uuid, pid=process.pid)
        return True

    def _new_program(self) -> ControlProgram:
        driver, folders = self._state.node.loaded(), self.folders
        if not driver.is_simulated and not processes.sees_host():
            raise MpsError(
                "gpushared is not in the host's PID namespace, and an MPS server would not find "
                "its clients: set hostPID: true, or --pid=host"
            )
        # In protocol 3, a partition can be created only while the card has no clients ("MPS v3
        # Interface"); containers come and go, so partitions are those of protocol 2.
        protocol = 2 if self._partitions else protocol_of(driver.nvml.driver_version)
        if self._partitions and not has_static_partitions(_number(driver.nvml.cuda_version)):
            raise MpsError(
                f"mps_partitions needs a driver of CUDA 13.1 or newer, and this one is of CUDA "
                f"{driver.nvml.cuda_version}"
            )
        return ControlProgram(
            self._program,
            folders.pipe,
            folders.log,
            self._card.uuid,
            protocol,
            static=self._partitions,
            multiuser=self._has_multiuser,
            env=driver.env,
        )

    def _forget(self) -> None:
        self.close()
        self.folders.forget_state()

    def _foreign_server(self) -> int:
        """Return the process of another MPS server that uses the card, 0 for none."""
        card = self._state.observed.usage.cards.get(self._card.uuid)
        found = [one.pid for one in card.non_tenants if one.name.startswith(_NAME)] if card else []
        if not found:
            return 0
        own = {self.pid, *self._own_servers()}
        return next((pid for pid in found if not own & {pid, _parent(pid)}), 0)

    def _own_servers(self) -> list[int]:
        try:
            return [] if self.control is None else [one.pid for one in self.control.servers()]
        except MpsError:
            return []


def _number(cuda_version: str) -> int:
    """Return a version of CUDA as cuDriverGetVersion has it: 13010 for "13.1"."""
    major, _, minor = cuda_version.partition(".")
    return int(major) * 1000 + int(minor or 0) * 10 if major.isdecimal() else 0


def _parent(pid: int) -> int:
    found = processes.find_outer(pid)
    return -1 if found is None else found.parent
