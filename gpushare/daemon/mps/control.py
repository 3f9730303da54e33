# SPDX-License-Identifier: Apache-2.0
"""`nvidia-cuda-mps-control` of one card: its command line, and the commands to it.

    program = ControlProgram(path, pipe_folder, log_folder, uuid)
    # start program.arguments() with program.environment(), and watch it
    control = MpsControl(program)
    while not control.is_ready(): ...
    limits = TenantLimits(memory_bytes, cores_percent)
    control.enforce([limits])
    # mount pipe_folder; CUDA_MPS_PIPE_DIRECTORY=<where it is mounted>, and limits.variables

One control daemon per card: a server with several cards refuses new clients on all of them after a
fault on one. Sources: Multi-Process Service manual, release 615, "Legacy MPS v2 Interface",
"Environment Variables"; the programs of 535, 550 and 555 (tests/c/real_driver/test_mps.py).
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.daemon.core.log import log

#: How long a command may take. One that ends a client waits for the client's work: TERMINATE.
COMMAND_SECONDS: Final = 10.0
TERMINATE_SECONDS: Final = 30.0
#: One that takes longer is an event: a few idle connections make the control daemon wait.
SLOW_SECONDS: Final = 1.0
MIB: Final = 1 << 20

_DEVICE: Final = "0"  # the daemon has one card


class MpsError(Exception):
    """A command failed, timed out, or had no effect; with the control daemon's text."""


@dataclass(frozen=True)
class ControlProgram:
    """One control daemon: the program, its folders, its card and its mode."""

    program: Path
    # Its own folders: they exist, and only gpushared can write to them.
    pipe_folder: Path
    log_folder: Path
    uuid: str
    multiuser: bool = False  # one server for all users; it must run as root, and faults cross users
    # Variables beside those of MPS: PATH, libraries, a simulated device.
    env: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """Return the command line of the daemon, in the foreground."""
        return [str(self.program), "-f", *(["-multiuser-server"] if self.multiuser else [])]

    def environment(self) -> dict[str, str]:
        """Return the environment of the daemon, and of commands to it.

        From driver 615 on, there is a protocol 3, too. Driver 580 ignores the variable.
        """
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            **self.env,
            "CUDA_VISIBLE_DEVICES": self.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_folder),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_folder),
            "CUDA_MPS_PROTOCOL_VERSION": "2",
        }

    def run(
        self, commands: str, seconds: float = COMMAND_SECONDS, *, may_fail: bool = False
    ) -> str:
        """Return what the program prints for `commands`, without blanks at the ends; MpsError."""
        begun = time.monotonic()
        try:
            done = subprocess.run(
                [str(self.program)],
                env=self.environment(),
                cwd="/",
                text=True,
                errors="replace",
                input=f"{commands}\n",
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except OSError as error:
            raise MpsError(f"{self.program}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise MpsError(f"{commands}: no answer within {seconds:g} s") from error
        finally:
            taken = round(time.monotonic() - begun, 1)
            # One that ends a client takes as long as the client has work.
            if taken >= SLOW_SECONDS and seconds <= COMMAND_SECONDS:
                log("mps-command-slow", "warning", card=self.uuid, command=commands, seconds=taken)
        if done.returncode and not may_fail:
            text = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
            raise MpsError(f"{commands}: {text}")
        return done.stdout.strip()


@dataclass(frozen=True)
class TenantLimits:
    """The limits of one container on one card.

    The memory limit holds for EACH process of the container; the interposer library counts the sum
    of all processes to the byte.
    """

    memory_bytes: int
    cores_percent: int  # 1 to 100, a ceiling and no reservation
    priority: int = 0  # 0 (normal) or 1 (below normal), a hint

    @property
    def memory_mib(self) -> int:
        """The memory limit in whole MiB, the unit of the control daemon: never above the quota."""
        return max(1, self.memory_bytes // MIB)

    @property
    def note(self) -> str:
        """What the control daemon does with a limit above 1 GiB that is not in whole GiB."""
        gib, rest = divmod(self.memory_mib, 1024)
        if not gib or not rest:
            return ""
        return (
            f"memory: NVIDIA's MPS control daemon shows the limit of each process, "
            f"{self.memory_mib}MiB, as {gib}GiB, and may apply that; request whole GiB"
        )

    @property
    def variables(self) -> dict[str, str]:
        """What has to be set before cuInit; a process can raise them again to the server's."""
        return {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{_DEVICE}={self.memory_mib}M",
            "CUDA_MPS_CLIENT_PRIORITY": str(self.priority),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(self.cores_percent),
        }


class MpsControl:
    """A control daemon with one server for all containers, commanded on its standard input.

    Its limits are those of the container with the largest ones; the smaller ones of the others are
    in `TenantLimits.variables`.

    Every method blocks until its command has ended, at most COMMAND_SECONDS each (`terminate`:
    TERMINATE_SECONDS), and raises MpsError; call them from one thread, which nothing waits for.

    A command that fails prints a text and exits with 0, and a wrong device is ignored without a
    word: each setting is read back. Devices are named by their index, since limits by UUID were not
    applied (NVIDIA/k8s-device-plugin, pull request 572).
    """

    def __init__(self, program: ControlProgram) -> None:
        self.program = program

    def is_ready(self) -> bool:
        """Whether it answers commands."""
        try:
            return _read(self.program.run("get_default_active_thread_percentage")) >= 0
        except MpsError:
            return False

    def enforce(self, every: Collection[TenantLimits], servers: Sequence[int] | None = None) -> str:
        """Have the limits of the largest container in force; return what they were if not.

        They are those of processes that start afterwards. Somebody else may have changed them: root
        of a container commands the control daemon, and before 550 every user. A priority is each
        client's own: it is a hint, and older drivers have no default for it. MpsError.
        """
        if not every:
            return ""  # nobody has the folder
        servers = self._server_pids() if servers is None else servers
        cores = str(max(limits.cores_percent for limits in every))
        memory = f"{max(limits.memory_mib for limits in every)}M"
        wanted = {
            "default_active_thread_percentage": cores,
            f"default_device_pinned_mem_limit {_DEVICE}": memory,
            **{f"active_thread_percentage {pid}": cores for pid in servers},
            **{f"device_pinned_mem_limit {pid} {_DEVICE}": memory for pid in servers},
        }
        found = self._others(wanted)
        if found:
            commands = "\n".join(f"set_{setting} {value}" for setting, value in wanted.items())
            self.program.run(commands)
            left = self._others(wanted)
            if left and not set(servers) - set(self._server_pids()):  # else one has ended
                raise MpsError(f"{commands}: has no effect: {left}")
        return found

    def _others(self, wanted: Mapping[str, str]) -> str:
        """Return what is set if it is not `wanted`."""
        found = self.program.run("\n".join(f"get_{setting}" for setting in wanted)).splitlines()
        pairs = zip(wanted.values(), found, strict=False)
        if len(found) == len(wanted) and all(_is(value, _read(text)) for value, text in pairs):
            return ""
        return ", ".join(found) or "no limit"

    # Servers and clients.

    def servers(self) -> dict[int, str]:
        """Return the state of each server, by its process: one, or none.

        It is INITIALIZING, ACTIVE or FAULT; UNKNOWN from a driver before 550.
        """
        found = {pid: self.program.run(f"get_server_status {pid}") for pid in self._server_pids()}
        return {
            pid: "UNKNOWN" if state.startswith("Unknown command") else state.upper()
            for pid, state in found.items()
            if "not found" not in state  # it has ended
        }

    def _server_pids(self) -> list[int]:
        text = self.program.run("get_server_list")
        try:
            return [int(word) for word in text.split()]
        except ValueError as error:
            raise MpsError(f"get_server_list: {text}") from error

    def clients(self) -> dict[int, int]:
        """Return the processes that `ps` lists, as the host counts, with those of their servers."""
        clients = {}
        for line in self.program.run("ps").splitlines():
            pid, _, server, *_ = [*line.split(maxsplit=3), "", "", ""]
            if pid == "PID" or not line.strip() or line == "Server not found":
                continue
            if not pid.isdecimal() or not server.isdecimal():
                raise MpsError(f"ps: {line}")
            clients[int(pid)] = int(server)
        return clients

    def terminate(self, client: int, server: int) -> None:
        """End a client's work; one that has ended already is no error.

        A client that is killed with work in flight can leave the server and the other clients in an
        undefined state ("When to Use MPS").
        """
        command = f"terminate_client {server} {client}"
        text = self.program.run(command, TERMINATE_SECONDS)
        if text not in ("", "0") and client in self.clients():
            raise MpsError(f"{command}: {text}")

    def quit(self, seconds: float) -> None:
        """End the control daemon; servers end after so many seconds.

        Its status is 1 if any server has ever failed.
        """
        command = f"quit -t {max(0, round(seconds))}"
        self.program.run(command, COMMAND_SECONDS + seconds + 1, may_fail=True)


def _read(text: str) -> float:
    """Return a limit as the control daemon prints it: percent, or MiB; -1 for anything else."""
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([MG]?)", text.strip())
    return float(size[1]) * (1024 if size[2] == "G" else 1) if size else -1.0


def _is(value: str, read: float) -> bool:
    """Whether a limit was set to `value`: what is shown of 4608M is 4G."""
    wanted = _read(value)
    return read in (wanted, wanted // 1024 * 1024 if value.endswith("M") else wanted)
