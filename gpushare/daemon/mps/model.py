# SPDX-License-Identifier: Apache-2.0
"""What gpushared asks of an MPS control daemon, and what it reads from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


class MpsError(Exception):
    """A command failed, timed out, or had no effect; with the control daemon's text."""


@dataclass(frozen=True)
class TenantLimits:
    """The limits of one container on one card.

    memory_bytes holds for EACH process of the container (in protocol 3, the manual does not say
    whether it does, or holds for their sum) and is rounded up to whole MiB, the unit of the control
    daemon; the interposer library counts the sum of all processes to the byte. cores_percent is 1
    to 100, a ceiling and no reservation. priority is 0 (normal) or 1 (below normal), a hint.
    chunks: the size of a static partition of its own, None without one; with static partitions the
    driver ignores cores_percent.
    """

    memory_bytes: int
    cores_percent: int
    priority: int = 0
    chunks: int | None = None

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
    """How the processes of a container reach their server, with their limits.

    pipe_folder is the one folder of the control daemon that the container gets, read-write (a
    socket is connected to); its path inside the container goes into CUDA_MPS_PIPE_DIRECTORY, which
    is not in `env`. env: further variables that must be set before cuInit. A process that sets them
    differently can lower its limits, and, where they hold a static partition, take another one.

    hidden: names in the folder that the container must not reach; mount something else over each
    that exists. In protocol 2, the control daemon takes commands there from the host's root, which
    is also that of a container without a user namespace. In protocol 3, a namespace has one socket
    for clients and commands: root in such a container can change its own limits while it has no
    clients.
    """

    pipe_folder: Path
    env: Mapping[str, str]
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoutedTenant:
    """A container that has been added: its limits, its user, and the ID of its partition."""

    limits: TenantLimits
    uid: int
    partition: str = ""


@dataclass(frozen=True)
class MpsServerState:
    """A server: its name (protocol 3; its PID as text in protocol 2), PID and state.

    pid is 0 while it has no process. States: INITIALIZING, ACTIVE and FAULT in protocol 2, in
    protocol 3 as its list prints them (`Ready` is the one that the manual shows).
    """

    name: str
    pid: int
    state: str

    @property
    def takes_clients(self) -> bool:
        """Whether clients are accepted now."""
        return self.state.upper() in ("ACTIVE", "READY")


@dataclass(frozen=True)
class MpsProcess:
    """A client: its PID as the host counts, its server's PID, and what is known of it.

    tenant is the name given to `add`; None in protocol 2, and where nobody was added under its
    namespace. command is its command line, as far as the control daemon could read it.
    """

    pid: int
    server_pid: int
    tenant: str | None
    command: str


@dataclass(frozen=True)
class SmPartition:
    """A static partition: its ID (the part after the UUID in CUDA_MPS_SM_PARTITION) and size.

    name: as it was created in protocol 3, empty in protocol 2, which has no names. in_use: whether
    it has clients; None in protocol 3, whose list does not say.
    """

    name: str
    id: str
    chunks: int
    multiprocessors: int
    in_use: bool | None


@dataclass(frozen=True)
class SmPartitions:
    """How a card is divided. Read, never computed: the size of a chunk depends on the card.

    The multiprocessors of a partition need not be chunks times a constant, for a remainder may
    be added to one of them.
    """

    free_chunks: int
    free_multiprocessors: int
    total_chunks: int
    total_multiprocessors: int
    partitions: tuple[SmPartition, ...]
