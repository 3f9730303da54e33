# SPDX-License-Identifier: Apache-2.0
"""The state of a simulated MPS control daemon, on which its commands work."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Protocol

from gpushare.simulator.device_file import libraries
from gpushare.simulator.mps_settings import (
    MpsClient,
    MpsCommandError,
    MpsDevice,
    MpsDevices,
    MpsLimits,
    MpsRoute,
)


@dataclass(frozen=True)
class MpsMode:
    """How a control daemon was started."""

    protocol: int = 2
    static: bool = False
    multiuser: bool = False


@dataclass
class MpsState:
    """The servers of a control daemon, and what they are to have."""

    mode: MpsMode
    devices: MpsDevices
    partitions: MpsPartitions
    defaults: MpsLimits = field(default_factory=MpsLimits)
    servers: dict[str, MpsServer] = field(default_factory=dict)
    features: dict[str, bool] = field(
        default_factory=lambda: {"memacct": True, "context-share": True}
    )
    audit_log: bool = False

    @property
    def server(self) -> MpsServer | None:
        """The one server of protocol 2."""
        return next(iter(self.servers.values()), None)


class ControlDaemon(Protocol):
    """The state on which commands work."""

    state: MpsState

    def start_server(
        self,
        uid: int,
        name: str = "",
        devices: MpsDevices | None = None,
        namespaces: dict[str, MpsLimits] | None = None,
    ) -> MpsServer:
        """Start the server for a user."""

    def stop_server(self, server: MpsServer) -> None:
        """End a server."""

    def quit(self, seconds: float) -> None:
        """End when there are no clients, or after `seconds`."""

    def folder(self, route: MpsRoute | None) -> Path:
        """Return where the socket of a route is."""

    def listen(self, route: MpsRoute | None) -> None:
        """Take connections by a route; OSError."""

    def stop_listening(self, route: MpsRoute) -> None:
        """Take no more connections by a route."""


# --- the MPS server of the simulated driver: a process with a context on each device ---

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"
DEFAULT: Final = "default"

#: The server's process: it has a context on each device, and ends with its standard input.
_SERVER: Final = """
import ctypes, sys
with open("/proc/self/comm", "w") as name:  # as the driver's list of processes shows it
    name.write("nvidia-cuda-mps-server")
cuda = ctypes.CDLL(sys.argv[1])
count, context = ctypes.c_int(), ctypes.c_void_p()
error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
for ordinal in range(count.value):
    error = error or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal)
print("error" if error else "ready", flush=True)
sys.stdin.read()
"""


@dataclass
class MpsServer:
    """A running MPS server, with the limits of its namespaces: in protocol 2, the default alone."""

    _process: subprocess.Popen[bytes]
    name: str
    uid: int
    devices: MpsDevices
    namespaces: dict[str, MpsLimits]
    state: str = "INITIALIZING"
    clients: dict[socket.socket, MpsClient] = field(default_factory=dict)

    @classmethod
    def start(
        cls, name: str, uid: int, namespaces: dict[str, MpsLimits], devices: MpsDevices
    ) -> MpsServer:
        """Start one for a user. OSError."""
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": ",".join(devices.uuids) or "-1",
            PIPE_ENV: "/nonexistent",  # it is no client
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _SERVER, str(libraries() / "libcuda.so.1")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        return cls(process, name, uid, devices, namespaces)

    @property
    def pid(self) -> int:
        """Its PID."""
        return self._process.pid

    @property
    def limits(self) -> MpsLimits:
        """The limits of its default namespace."""
        return self.namespaces[DEFAULT]

    @property
    def output(self) -> IO[bytes]:
        """A line once it is ready, and the end of the file when it ends."""
        assert self._process.stdout is not None
        return self._process.stdout

    def end(self) -> None:
        """Kill it."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self.output.close()

    def uses(self, partition: MpsPartition, partitions: MpsPartitions) -> bool:
        """Whether a client is in a partition."""
        return any(
            partitions.chosen(client.partition, partition.server) == partition
            for client in self.clients.values()
        )

    def grant(self, client: MpsClient, partitions: MpsPartitions, *, static: bool) -> str:
        """Return a client's reply: what its namespace allows it, and less where it asks for less.

        After the devices, a line for each: its UUID, the memory limit or 0, and how many
        multiprocessors the client may use; 0 for none, because it has to be in a partition.
        """
        granted = self.namespaces[client.route.namespace].narrowed(client, self.devices)
        memory = granted.pinned_bytes(self.devices)
        # Protocol 2 has one server, and partitions that are no server's.
        owner = "" if static else self.name
        chosen = partitions.chosen(client.partition, owner)

        def multiprocessors(device: MpsDevice) -> int:
            if chosen is not None and chosen.device == device:
                return chosen.multiprocessors
            if static or partitions.of(device):
                return 0
            return device.share(granted.percentage)

        lines = [
            f"{device.uuid} {memory.get(device.uuid, 0)} {multiprocessors(device)}"
            for device in self.devices.every
        ]
        return "\n".join(["ok", ",".join(self.devices.uuids), *lines])


def tell(connection: socket.socket, text: str) -> None:
    """Send to a client that may have ended."""
    try:
        connection.send(text.encode())
    except OSError:
        return


# --- the static partitions of the multiprocessors of the simulated cards ---
#
# A partition has whole chunks. A chunk is of 8 multiprocessors on cards of compute capability 9.0
# and higher, and of 4 (protocol 2) or 2 (protocol 3) on older ones from 8.0 on. (Multi-Process
# Service manual, "When to Use MPS")

_ID_BYTES: Final = 27
_AMPERE: Final = 8
_HOPPER: Final = 9


@dataclass(frozen=True)
class MpsPartition:
    """A static partition of a card."""

    id: str
    name: str
    server: str
    device: MpsDevice
    chunks: int
    multiprocessors: int
    remainder: bool

    @property
    def variable(self) -> str:
        """The value of CUDA_MPS_SM_PARTITION."""
        return f"{self.device.uuid}/{self.id}"


class MpsPartitions:
    """The partitions of a control daemon, in the order in which they were created."""

    def __init__(self, protocol: int) -> None:
        self._protocol = protocol
        self._every: list[MpsPartition] = []
        self._next = 0

    def of(self, device: MpsDevice) -> list[MpsPartition]:
        """Return the partitions of a card."""
        return [partition for partition in self._every if partition.device == device]

    def chunk(self, device: MpsDevice) -> int:
        """Return how many multiprocessors a chunk has."""
        if device.compute_major >= _HOPPER:
            return 8
        return 4 if self._protocol == 2 else 2

    def total(self, device: MpsDevice) -> int:
        """Return the chunks of a card."""
        if device.compute_major < _AMPERE:
            return 0
        return device.multiprocessors // self.chunk(device)

    def free(self, device: MpsDevice) -> tuple[int, int]:
        """Return the chunks and the multiprocessors that no partition has."""
        taken = self.of(device)
        return (
            self.total(device) - sum(partition.chunks for partition in taken),
            device.multiprocessors - sum(partition.multiprocessors for partition in taken),
        )

    def add(
        self,
        device: MpsDevice,
        chunks: int,
        name: str = "",
        server: str = "",
        *,
        remainder: bool | None = None,
    ) -> MpsPartition:
        """Create a partition; MpsCommandError where chunks are lacking.

        With `remainder`, or without a word for the one that takes the last chunk, it has also the
        multiprocessors that are no whole chunk.
        """
        free, multiprocessors = self.free(device)
        if not 0 < chunks <= free:
            raise MpsCommandError(
                "Failed to fulfill the request: CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
            )
        size = chunks * self.chunk(device)
        whole = remainder if remainder is not None else chunks == free
        if whole:
            size += multiprocessors - free * self.chunk(device)
        # Base64 of which a part is a slash, as those of drivers can be.
        code = bytes((self._protocol, 0xFF, 0xC0 | self._next)).ljust(_ID_BYTES, b"\0")
        self._next += 1
        partition = MpsPartition(
            base64.b64encode(code).decode(), name, server, device, chunks, size, whole
        )
        self._every.append(partition)
        return partition

    def remove(self, partition: MpsPartition) -> None:
        """Delete a partition."""
        self._every.remove(partition)

    def remove_server(self, server: str) -> None:
        """Delete the partitions of a server."""
        self._every = [partition for partition in self._every if partition.server != server]

    def named(self, device: MpsDevice, word: str, server: str = "") -> MpsPartition:
        """Return a card's partition by its ID, in protocol 3 by its name; MpsCommandError."""
        for partition in self.of(device):
            if word == (partition.name or partition.id) and partition.server == server:
                return partition
        raise MpsCommandError(f"Partition {word} not found")

    def chosen(self, variable: str, server: str) -> MpsPartition | None:
        """Return the one that CUDA_MPS_SM_PARTITION names; a UUID may be abbreviated."""
        uuid, _, word = variable.partition("/")
        for partition in self._every:
            if partition.id == word and partition.server == server:
                return partition if uuid and partition.device.uuid.startswith(uuid) else None
        return None

    def listed(self, devices: Iterable[MpsDevice]) -> list[MpsPartition]:
        """Return the partitions of cards, card by card."""
        return [partition for device in devices for partition in self.of(device)]
