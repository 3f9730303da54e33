# SPDX-License-Identifier: Apache-2.0
"""The MPS server of the simulated driver: a process with a context on each device."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import IO, Final

from gpushare.simulator.device_file import libraries
from gpushare.simulator.mps_partitions import MpsPartition, MpsPartitions
from gpushare.simulator.mps_settings import MpsClient, MpsDevice, MpsDevices, MpsLimits

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
