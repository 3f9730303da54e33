# SPDX-License-Identifier: Apache-2.0
"""`nvidia-cuda-mps-control` of one card: its start, its commands, and the values in them.

One control daemon per card: a server with several cards refuses new clients on all of them after a
fault on one. Sources: Multi-Process Service manual, release 615, "Legacy MPS v2 Interface", "MPS v3
Interface", "Environment Variables".
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

#: How long a command may take. One that ends a client waits for the client's work: TERMINATE.
COMMAND_SECONDS: Final = 10.0
TERMINATE_SECONDS: Final = 30.0

#: The longest path of a socket, with the byte that ends it: unix(7). A control daemon whose paths
#: are longer does not start, and does not say why.
_SOCKET_PATH: Final = 108
_PROTOCOL3_DRIVER: Final = 615
_STATIC_CUDA: Final = 13010

Protocol = Literal[2, 3]


def protocol_of(driver_version: str) -> Protocol:
    """Return the newest protocol of a driver, 2 where the version cannot be read.

    Protocol 3 is of driver 615, which is CUDA 13.4. ("MPS v3 Interface")
    """
    major = re.match(r"[0-9]+", driver_version)
    return 3 if major and int(major[0]) >= _PROTOCOL3_DRIVER else 2


def has_static_partitions(cuda_version: int) -> bool:
    """Whether a driver has static partitions, by its CUDA version as cuDriverGetVersion returns it.

    From CUDA 13.1 (driver 590) on; cards of compute capability 8.0 and higher. A control daemon of
    12.x does not know the option. ("Using Static SM Partitioning"; the version: reported by others)
    """
    return cuda_version >= _STATIC_CUDA


@dataclass(frozen=True)
class ControlProgram:
    """One control daemon: the program, its folders, its card and its mode."""

    program: Path
    # Its own folders: they exist, and only gpushared can write to them.
    pipe_folder: Path
    log_folder: Path
    uuid: str
    protocol: Protocol = 2
    # With static partitions (protocol 2; 3 needs no option for them): EVERY client needs one then.
    static: bool = False
    multiuser: bool = False  # one server for all users; it must run as root, and faults cross users
    # Variables beside those of MPS: PATH, libraries, a simulated device.
    env: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """Return the command line of the daemon, in the foreground."""
        options = ["-f"]
        if self.protocol == 3:
            options += ["-p", "3", *(["-m"] if self.multiuser else [])]
        else:
            options += ["-S"] if self.static else []
            options += ["-multiuser-server"] if self.multiuser else []
        return [str(self.program), *options]

    def environment(self) -> dict[str, str]:
        """Return the environment of the daemon, and of commands to it.

        The variable for the protocol takes precedence over the option, so both are given.
        """
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            **self.env,
            "CUDA_VISIBLE_DEVICES": self.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_folder),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_folder),
            "CUDA_MPS_PROTOCOL_VERSION": str(self.protocol),
        }

    def check_path(self, folder: Path) -> None:
        """Refuse a folder whose socket `control` would have too long a path; MpsError."""
        path = folder / "control"
        if len(str(path).encode()) >= _SOCKET_PATH:
            raise MpsError(
                f"{path}: a socket's path has at most {_SOCKET_PATH - 1} bytes. Use a shorter "
                "state directory."
            )

    def run(self, *arguments: str, commands: str = "", seconds: float = COMMAND_SECONDS) -> str:
        """Return what the program prints, without blanks at the ends; MpsError.

        It is given `arguments` (protocol 3), or `commands` on its standard input (protocol 2).
        """
        command = " ".join(arguments) or commands
        try:
            done = subprocess.run(
                [str(self.program), *arguments],
                input=f"{commands}\n" if commands else "",
                env=self.environment(),
                cwd="/",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MpsError(f"{command}: no answer within {seconds:g} s") from error
        except OSError as error:
            raise MpsError(f"{self.program}: {error.strerror}") from error
        if done.returncode:
            text = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
            raise MpsError(f"{command}: {text}")
        return done.stdout.strip()


def size_in_bytes(text: str) -> int:
    """Return the bytes of a limit as the control daemon prints it; MpsError for anything else."""
    size = re.fullmatch(r"([0-9]+)([KMG])B?", text.strip(), re.IGNORECASE)
    if size is None:
        raise MpsError(f"{text!r} is not a size with K, M or G")
    return int(size[1]) << {"K": 10, "M": 20, "G": 30}[size[2].upper()]


MIB = 1 << 20


class MpsError(Exception):
    """A command failed, timed out, or had no effect; with the control daemon's text."""


@dataclass(frozen=True)
class TenantLimits:
    """The limits of one container on one card.

    The memory limit holds for EACH process of the container (in protocol 3, the manual does not say
    whether it does, or holds for their sum); the interposer library counts the sum of all processes
    to the byte. With static partitions the driver ignores cores_percent.
    """

    memory_bytes: int  # rounded up to whole MiB, the unit of the control daemon
    cores_percent: int  # 1 to 100, a ceiling and no reservation
    priority: int = 0  # 0 (normal) or 1 (below normal), a hint
    chunks: int | None = None  # the size of a static partition of its own, None without one

    def __post_init__(self) -> None:
        """Refuse what no control daemon takes; ValueError."""
        if self.memory_bytes <= 0:
            raise ValueError(f"memory_bytes: {self.memory_bytes} is not positive")
        if not 1 <= self.cores_percent <= 100:
            raise ValueError(f"cores_percent: {self.cores_percent} is not from 1 to 100")
        if self.priority not in (0, 1):
            raise ValueError(f"priority: {self.priority} is neither 0 nor 1")
        if self.chunks is not None and self.chunks < 1:
            raise ValueError(f"chunks: {self.chunks} is not positive")

    @property
    def memory_mib(self) -> int:
        """The memory limit in whole MiB, rounded up."""
        return -(-self.memory_bytes // MIB)


@dataclass(frozen=True)
class ClientRoute:
    """The way of a container's processes to their server, with their limits."""

    # The one folder of the control daemon that the container gets; its path inside the container
    # goes into CUDA_MPS_PIPE_DIRECTORY, which is not in `env`.
    pipe_folder: Path
    # Further variables that must be set before cuInit. A process that sets them differently can
    # lower its limits, and, where they hold a static partition, take another one.
    env: Mapping[str, str]
    # Names in the folder that the container must not reach; mount something else over each that
    # exists. In protocol 2, the control daemon takes commands there from the host's root, which is
    # also that of a container without a user namespace. In protocol 3, a namespace has one socket
    # for clients and commands: root in such a container can change its own limits while it has no
    # clients.
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoutedTenant:
    """A container that has been added."""

    limits: TenantLimits
    uid: int
    partition: str = ""  # its ID


@dataclass(frozen=True)
class MpsServerState:
    """A server of a control daemon."""

    name: str  # in protocol 2 its PID, as text
    pid: int  # 0 while it has no process
    # INITIALIZING, ACTIVE and FAULT in protocol 2, in protocol 3 as its list prints them (`Ready`
    # is the one that the manual shows).
    state: str

    @property
    def takes_clients(self) -> bool:
        """Whether clients are accepted now."""
        return self.state.upper() in ("ACTIVE", "READY")


@dataclass(frozen=True)
class MpsProcess:
    """A client of a server."""

    pid: int  # as the host counts
    server_pid: int
    # The name given to `add`; None in protocol 2, and if no tenant was added under its namespace.
    tenant: str | None
    command: str  # its command line, as far as the control daemon could read it


@dataclass(frozen=True)
class SmPartition:
    """A static partition."""

    name: str  # as it was created in protocol 3; empty in protocol 2, which has no names
    id: str  # the part after the UUID in CUDA_MPS_SM_PARTITION
    chunks: int
    multiprocessors: int
    in_use: bool | None  # whether it has clients; None in protocol 3, whose list does not say


@dataclass(frozen=True)
class SmPartitions:
    """The division of a card. Read, never computed: the size of a chunk depends on the card.

    The multiprocessors of a partition need not be chunks times a constant, for a remainder may
    be added to one of them.
    """

    free_chunks: int
    free_multiprocessors: int
    total_chunks: int
    total_multiprocessors: int
    partitions: tuple[SmPartition, ...]
