# SPDX-License-Identifier: Apache-2.0
"""`nvidia-cuda-mps-control` of one card: its command line, and the commands to it.

    program = ControlProgram(path, pipe_folder, log_folder, uuid)
    # start program.arguments() with program.environment(), and watch it
    control = MpsControl(program)
    while not control.is_ready(): ...
    limits = TenantLimits(memory_bytes, cores_percent)
    control.add(key, limits, uid)
    # mount pipe_folder; CUDA_MPS_PIPE_DIRECTORY=<where it is mounted>, and limits.variables

One control daemon per card: a server with several cards refuses new clients on all of them after a
fault on one. Sources: Multi-Process Service manual, release 615, "Legacy MPS v2 Interface",
"Environment Variables"; the programs of 535, 550 and 555 (tests/c/real_driver/test_mps.py).
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import credentials

#: How long a command may take. One that ends a client waits for the client's work: TERMINATE.
COMMAND_SECONDS: Final = 10.0
TERMINATE_SECONDS: Final = 30.0
#: One that takes longer is an event: a few idle connections make the control daemon wait.
SLOW_SECONDS: Final = 1.0
MIB: Final = 1 << 20

_DEVICE: Final = "0"  # the daemon has one card

#: The longest path of a socket, with the byte that ends it: unix(7). A control daemon whose paths
#: are longer does not start, and does not say why.
_SOCKET_PATH: Final = 108


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
    pid: int = 0  # of the running daemon, if it is known

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

    def check_path(self) -> None:
        """Refuse a folder whose socket `control` would have too long a path; MpsError."""
        path = self.pipe_folder / "control"
        if len(str(path).encode()) >= _SOCKET_PATH:
            raise MpsError(
                f"{path}: a socket's path has at most {_SOCKET_PATH - 1} bytes. Use a shorter "
                "state directory."
            )

    def run(
        self, commands: str, seconds: float = COMMAND_SECONDS, *, may_fail: bool = False
    ) -> str:
        """Return what the program prints for `commands`, without blanks at the ends; MpsError."""
        try:
            process = subprocess.Popen(
                [str(self.program)],
                env=self.environment(),
                cwd="/",
                text=True,
                errors="replace",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise MpsError(f"{self.program}: {error.strerror}") from error
        with process:
            try:
                output, failure = self._answer(process, commands, seconds)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise MpsError(f"{commands}: no answer within {seconds:g} s") from error
        if process.returncode and not may_fail:
            text = failure.strip() or output.strip() or f"exit status {process.returncode}"
            raise MpsError(f"{commands}: {text}")
        return str(output).strip()

    def _answer(
        self, process: subprocess.Popen[str], commands: str, seconds: float
    ) -> tuple[str, str]:
        """Return what a command prints; a slow one is logged, with who has connections."""
        if seconds != COMMAND_SECONDS:  # as long as its clients have work
            return process.communicate(f"{commands}\n", seconds)
        begun = time.monotonic()
        try:
            return process.communicate(f"{commands}\n", SLOW_SECONDS)
        except subprocess.TimeoutExpired:
            peers = sorted(set(connected(self.pid)) - {process.pid}) if self.pid else []
        try:
            return process.communicate(timeout=seconds - SLOW_SECONDS)
        finally:
            taken = round(time.monotonic() - begun, 1)
            place = {"card": self.uuid, "command": commands, "seconds": taken}
            log("mps-command-slow", "warning", **place, peers=peers)


_PIDFD_GETFD: Final = 438  # of every architecture; Linux 5.6
_libc: Final = ctypes.CDLL(None, use_errno=True)


def connected(pid: int) -> Iterator[int]:
    """Yield the processes that are connected to a process by a socket that it has accepted."""
    with suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            for link in Path(f"/proc/{pid}/fd").iterdir():
                fd = _libc.syscall(_PIDFD_GETFD, pidfd, int(link.name), 0)
                if fd < 0:
                    continue
                try:
                    peer = socket.socket(fileno=fd)
                except OSError:  # it is no socket
                    os.close(fd)
                    continue
                with peer, suppress(OSError):
                    peer.getpeername()
                    yield credentials(peer)[0]
        finally:
            os.close(pidfd)


@dataclass(frozen=True)
class TenantLimits:
    """The limits of one container on one card.

    The memory limit holds for EACH process of the container; the interposer library counts the sum
    of all processes to the byte.
    """

    memory_bytes: int
    cores_percent: int  # 1 to 100, a ceiling and no reservation
    priority: int = 0  # 0 (normal) or 1 (below normal), a hint

    def __post_init__(self) -> None:
        """Refuse what no control daemon takes; ValueError."""
        if self.memory_bytes <= 0:
            raise ValueError(f"memory_bytes: {self.memory_bytes} is not positive")
        if not 1 <= self.cores_percent <= 100:
            raise ValueError(f"cores_percent: {self.cores_percent} is not from 1 to 100")
        if self.priority not in (0, 1):
            raise ValueError(f"priority: {self.priority} is neither 0 nor 1")

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


@dataclass(frozen=True)
class MpsServerState:
    """A server of a control daemon."""

    pid: int
    state: str  # INITIALIZING, ACTIVE or FAULT; UNKNOWN from a driver before 550


@dataclass(frozen=True)
class MpsProcess:
    """A client of a server."""

    pid: int  # as the host counts
    server_pid: int


class MpsControl:
    """A control daemon with one server for all containers, commanded on its standard input.

    Its limits are those of the container with the largest ones; the smaller ones of the others are
    in `TenantLimits.variables`. It keeps nothing: one that has been started again is told of its
    containers with `add`, and so is one that has outlived gpushared.

    Every method blocks until its command has ended, at most COMMAND_SECONDS each (`terminate`:
    TERMINATE_SECONDS), and raises MpsError; call them from one thread, which nothing waits for.

    A command that fails prints a text and exits with 0, and a wrong device is ignored without a
    word: each setting is read back. Devices are named by their index, since limits by UUID were not
    applied (NVIDIA/k8s-device-plugin, pull request 572).
    """

    def __init__(self, program: ControlProgram) -> None:
        self.program = program
        self._tenants: dict[str, tuple[TenantLimits, int]] = {}  # with the host's user

    def is_ready(self) -> bool:
        """Whether it answers commands."""
        try:
            return _read(self.program.run("get_default_active_thread_percentage")) >= 0
        except MpsError:
            return False

    def add(self, name: str, limits: TenantLimits, uid: int) -> None:
        """Add a container of a user of the host, or set other limits for it.

        They are those of processes that start afterwards. On MpsError, they are what they were.
        """
        self.program.check_path()
        self._check_user(name, uid)
        before = dict(self._tenants)
        self._tenants[name] = (limits, uid)
        if self._tenants == before:
            return
        try:
            self._apply()
        except MpsError:
            self._tenants = before
            raise

    def remove(self, name: str) -> None:
        """Lower the server's limits to those of the others; an unknown container is no error."""
        if self._tenants.pop(name, None) is not None:
            self._apply()

    def _check_user(self, name: str, uid: int) -> None:
        users = {user for other, (_, user) in self._tenants.items() if other != name}
        if not self.program.multiuser and users - {uid}:
            raise MpsError(
                f"user {uid}: the MPS server of {self.program.uuid} serves user {min(users)} until "
                "its containers have ended. Use one user, or the multi-user server."
            )

    # Limits: of the next server, and of those that run. They are those of the largest container.
    # The priority is each client's own: it is a hint, and older drivers have no default for it.

    def enforce(self, servers: Sequence[int]) -> str:
        """Set limits again that somebody else has changed; return what they were, "" if none was.

        Root of a container commands the control daemon, and before 550 every user.
        """
        wanted = self._wanted(servers)
        if not wanted:
            return ""
        commands = "\n".join(f"get_{setting}" for setting, _ in wanted)
        found = self.program.run(commands).splitlines()
        read = [(setting, _read(text)) for (setting, _), text in zip(wanted, found, strict=False)]
        if len(found) == len(wanted) and all(
            _is(value, size) for (_, value), (_, size) in zip(wanted, read, strict=True)
        ):
            return ""
        self._apply()
        return ", ".join(found) or "none"

    def _wanted(self, servers: Sequence[int]) -> list[tuple[str, str]]:
        """Return the settings with their values."""
        every = [limits for limits, _ in self._tenants.values()]
        if not every:
            return []  # nobody has the folder
        cores = str(max(limits.cores_percent for limits in every))
        memory = f"{max(limits.memory_mib for limits in every)}M"
        wanted = [
            ("default_active_thread_percentage", cores),
            (f"default_device_pinned_mem_limit {_DEVICE}", memory),
        ]
        for pid in servers:
            wanted.append((f"active_thread_percentage {pid}", cores))
            wanted.append((f"device_pinned_mem_limit {pid} {_DEVICE}", memory))
        return wanted

    def _apply(self) -> None:
        """Set the limits; MpsError where they are not in force then."""
        servers = self._server_pids() if self._tenants else []
        for setting, value in self._wanted(servers):
            text = self.program.run(f"set_{setting} {value}\nget_{setting}")
            if _is(value, _read(text.splitlines()[-1] if text else "")):
                continue
            if setting.startswith("default") or servers == self._server_pids():
                raise MpsError(f"set_{setting} {value}: has no effect: {text or 'no limit'}")

    # Servers and clients.

    def servers(self) -> tuple[MpsServerState, ...]:
        """Return the servers, which are one, or none."""
        found = {pid: self.program.run(f"get_server_status {pid}") for pid in self._server_pids()}
        return tuple(
            MpsServerState(pid, "UNKNOWN" if state.startswith("Unknown command") else state)
            for pid, state in found.items()
            if "not found" not in state  # it has ended
        )

    def _server_pids(self) -> list[int]:
        text = self.program.run("get_server_list")
        try:
            return [int(word) for word in text.split()]
        except ValueError as error:
            raise MpsError(f"get_server_list: {text}") from error

    def clients(self) -> tuple[MpsProcess, ...]:
        """Return what `ps` lists, a process once."""
        clients = {}
        for line in self.program.run("ps").splitlines():
            pid, _, server, *_ = [*line.split(maxsplit=3), "", "", ""]
            if pid == "PID" or not line.strip() or line == "Server not found":
                continue
            if not pid.isdecimal() or not server.isdecimal():
                raise MpsError(f"ps: {line}")
            clients[int(pid)] = MpsProcess(int(pid), int(server))
        return tuple(clients.values())

    def terminate(self, client: MpsProcess) -> None:
        """End a client's work; one that has ended already is no error.

        A client that is killed with work in flight can leave the server and the other clients in an
        undefined state ("When to Use MPS").
        """
        command = f"terminate_client {client.server_pid} {client.pid}"
        text = self.program.run(command, TERMINATE_SECONDS)
        if text not in ("", "0") and any(other.pid == client.pid for other in self.clients()):
            raise MpsError(f"{command}: {text}")

    def quit(self, seconds: float) -> None:
        """End the control daemon; servers end after so many seconds.

        Its status is 1 if any server has ever failed.
        """
        self.program.run(f"quit -t {max(0, round(seconds))}", may_fail=True)


def _read(text: str) -> float:
    """Return a limit as the control daemon prints it: percent, or MiB; -1 for anything else."""
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([MG]?)", text.strip())
    return float(size[1]) * (1024 if size[2] == "G" else 1) if size else -1.0


def _is(value: str, read: float) -> bool:
    """Whether a limit was set to `value`: what is shown of 4608M is 4G."""
    wanted = _read(value)
    return read in (wanted, wanted // 1024 * 1024 if value.endswith("M") else wanted)
