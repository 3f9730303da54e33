# SPDX-License-Identifier: Apache-2.0
"""HTTP over a Unix socket, for a client."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path


class UnixSocketConnection(http.client.HTTPConnection):
    """A connection to the server that listens at `path`; `seconds` limits each wait."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
