# SPDX-License-Identifier: Apache-2.0
"""The MPS server of the simulated driver: a process with a context on each device."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import IO, Final

from gpushare.simulator.mps_settings import MpsClient, MpsDevices, MpsLimits
from gpushare.simulator.profiles import libraries

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"

#: The server's process: it has a context on each device, and ends with its standard input.
_SERVER: Final = """
import ctypes, sys
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
    limits: MpsLimits
    state: str = "INITIALIZING"
    clients: dict[socket.socket, MpsClient] = field(default_factory=dict)

    @classmethod
    def start(cls, uid: int, limits: MpsLimits, devices: MpsDevices) -> MpsServer:
        """Start one for a user. OSError."""
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": ",".join(devices.uuids),
            PIPE_ENV: "/nonexistent",  # it is no client
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _SERVER, str(libraries() / "libcuda.so.1")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        return cls(process, uid, limits.copy())

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


def tell(connection: socket.socket, text: str) -> None:
    """Send to a client that may have ended."""
    try:
        connection.send(text.encode())
    except OSError:
        return
