# SPDX-License-Identifier: Apache-2.0
"""The state of a simulated MPS control daemon, on which its commands work."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import IO, Final, Protocol

from gpushare.simulator.device_file import libraries
from gpushare.simulator.mps_settings import MpsClient, MpsDevices, MpsLimits


@dataclass
class MpsState:
    """The server of a control daemon, and what the next one is to have."""

    devices: MpsDevices
    defaults: MpsLimits = field(default_factory=MpsLimits)
    server: MpsServer | None = None


class ControlDaemon(Protocol):
    """The state on which commands work."""

    state: MpsState

    def start_server(self, uid: int) -> MpsServer:
        """Start the server for a user."""

    def stop_server(self, server: MpsServer) -> None:
        """End a server."""

    def quit(self, seconds: float) -> None:
        """End when there are no clients, or after `seconds`."""


# --- the MPS server of the simulated driver: a process with a context on each device ---

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"

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
    """A running MPS server."""

    _process: subprocess.Popen[bytes]
    uid: int
    devices: MpsDevices
    limits: MpsLimits
    state: str = "INITIALIZING"
    clients: dict[socket.socket, MpsClient] = field(default_factory=dict)

    @classmethod
    def start(cls, uid: int, limits: MpsLimits, devices: MpsDevices) -> MpsServer:
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
        return cls(process, uid, devices, limits)

    @property
    def pid(self) -> int:
        """Its PID."""
        return self._process.pid

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

    def grant(self, client: MpsClient) -> str:
        """Return a client's reply: what the server allows it, and less where it asks for less.

        After the devices, a line for each: its UUID, the memory limit or 0, and how many
        multiprocessors the client may use.
        """
        granted = self.limits.narrowed(client, self.devices)
        memory = granted.pinned_bytes(self.devices)
        lines = [
            f"{device.uuid} {memory.get(device.uuid, 0)} {device.share(granted.percentage)}"
            for device in self.devices.every
        ]
        return "\n".join(["ok", ",".join(self.devices.uuids), *lines])


def tell(connection: socket.socket, text: str) -> None:
    """Send to a client that may have ended."""
    try:
        connection.send(text.encode())
    except OSError:
        return
