# SPDX-License-Identifier: Apache-2.0
"""The MPS control daemon of the simulated driver: its sockets, servers and clients.

Commands, environment, states and limits are those of NVIDIA's Multi-Process Service manual, release
615, protocol 2. simulator/README.md lists what the manual leaves open, and how it is assumed to be.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpushare.simulator import mps_commands
from gpushare.simulator.mps_settings import MpsClient, MpsDevices, credentials
from gpushare.simulator.mps_state import MpsServer, MpsState, tell

#: Where it takes commands, from the daemon's user only.
PRIVILEGED: Final = "control_privileged"
_PID_FILE: Final = "nvidia-cuda-mps-control.pid"
_MESSAGE_BYTES: Final = 8192

# CUresult, of cuda.h.
_LAUNCH_FAILED: Final = 719
_CONNECTION_FAILED: Final = 805
_SERVER_NOT_READY: Final = 807
_MAX_CLIENTS: Final = 808

#: Client contexts of a device: 60 since CUDA 13.1.
_CLIENTS: Final = ((13010, 60), (0, 48))


class MpsControlDaemon:
    """The control daemon."""

    def __init__(self, pipes: Path, logs: Path, devices: MpsDevices, *, multiuser: bool) -> None:
        """Take the pipe directory; OSError if it cannot, FileExistsError if another has it."""
        self.pipes, self._logs, self._multiuser = pipes, logs, multiuser
        for folder in (pipes, logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.state = MpsState(devices)
        self._next = 0
        self._waiting: list[tuple[socket.socket, MpsClient]] = []
        self._quit_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[Path, socket.socket] = {}
        self._listen(pipes / "control", 0o666, self._arrive)  # clients of any user
        (pipes / PRIVILEGED).unlink(missing_ok=True)  # of an earlier daemon
        self._listen(pipes / PRIVILEGED, 0o755, self._command)
        (pipes / _PID_FILE).write_text(f"{os.getpid()}\n")

    # Sockets.

    def _listen(self, path: Path, mode: int, call: Callable[[socket.socket], None]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
            else:
                raise FileExistsError(f"{path}: An instance of this daemon is already running")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(128)
        self._listeners[path] = listener

        def accept(listener: socket.socket) -> None:
            connection, _ = listener.accept()
            self._selector.register(connection, selectors.EVENT_READ, call)

        self._selector.register(listener, selectors.EVENT_READ, accept)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()

    def run(self) -> None:
        """Serve until `quit`."""
        self.log("control", "Start")
        try:
            while self._remaining() > 0:
                left = self._remaining()
                for key, _ in self._selector.select(None if left == math.inf else left):
                    key.data(key.fileobj)
        finally:
            if self.state.server is not None:
                self.stop_server(self.state.server)
            for path, listener in self._listeners.items():
                listener.close()
                path.unlink(missing_ok=True)
            (self.pipes / _PID_FILE).unlink(missing_ok=True)
            self.log("control", "Exit")

    def _remaining(self) -> float:
        """Return how long the daemon runs on, in seconds."""
        if self._quit_at is None:
            return math.inf
        server = self.state.server
        return self._quit_at - time.monotonic() if server and server.clients else 0

    def log(self, who: str, text: str, server: MpsServer | None = None) -> None:
        """Write a line into the log of the daemon (`control`) or of a server (`server`)."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        pid = server.pid if server else os.getpid()
        with (self._logs / f"{who}.log").open("a", encoding="utf-8") as file:
            file.write(f"[{stamp} {who.title()} {pid:5}] {text}\n")

    def _command(self, connection: socket.socket) -> None:
        """Carry out a command, and send what it prints."""
        with contextlib.suppress(OSError, ValueError):
            line = connection.recv(_MESSAGE_BYTES).decode()
            self.log("control", line.strip())
            # At least a byte: a daemon that has ended is read as none.
            connection.send(f"{mps_commands.run_command(self, line)}\n".encode())
        self._drop(connection)

    # Clients.

    def _arrive(self, connection: socket.socket) -> None:
        """Read from a new client what its environment says."""
        try:
            kind, percentage, pinned = connection.recv(_MESSAGE_BYTES).decode().split("\n")
        except (OSError, ValueError):
            kind = percentage = pinned = ""
        if kind != "client":
            self._drop(connection)
            return
        pid, uid = credentials(connection)
        self.log("control", f"Accepting connection... User {uid}, client process {pid}")
        self._selector.modify(connection, selectors.EVENT_READ, self._message)
        client = MpsClient(self._next, pid, uid, percentage, pinned)
        self._waiting.append((connection, client))
        self._next += 1
        self._settle()

    def _message(self, connection: socket.socket) -> None:
        """Read from a client: it has faulted, or has ended."""
        try:
            message = connection.recv(64)
        except OSError:
            message = b""
        if message == b"fault":
            self._fault(connection)
            return
        self._waiting = [entry for entry in self._waiting if entry[0] is not connection]
        server = self.state.server
        gone = server.clients.pop(connection, None) if server else None
        if server is not None and gone is not None:
            self.log("server", f"Client {gone.pid} disconnected", server)
            if not server.clients and server.state == "FAULT":
                server.state = "ACTIVE"
                self.log("server", "Clients have exited: Server is ACTIVE again", server)
        self._drop(connection)
        self._settle()

    def _fault(self, connection: socket.socket) -> None:
        """Pass a fault on to the other clients of the server."""
        server = self.state.server
        if server is None or connection not in server.clients:
            return
        pid = server.clients[connection].pid
        server.state = "FAULT"
        self.log("server", f"Client {pid} has caused a fatal fault: Server is in FAULT", server)
        for other in server.clients.keys() - {connection}:
            tell(other, str(_LAUNCH_FAILED))

    def _settle(self) -> None:
        """Give waiting clients to the server, as far as it takes them.

        In their order: a client that waits for the server of its user keeps those behind it
        waiting.
        """
        for connection, client in list(self._waiting):
            error = self._refusal(client)
            if error:
                reply = f"error {error}"
            else:
                server = self._server_for(client)
                if server.state != "ACTIVE" or not self._serves(server, client.uid):
                    return
                reply = server.grant(client)
                server.clients[connection] = client
                self.log("server", f"New client {client.pid} connected", server)
            self._waiting.remove((connection, client))
            tell(connection, reply)

    def _refusal(self, client: MpsClient) -> int:
        """Return the CUresult with which a client is refused, 0 for none."""
        server = self.state.server
        if self._quit_at is not None:
            return _SERVER_NOT_READY
        if os.geteuid() not in (0, client.uid):
            return _CONNECTION_FAILED
        if server is None or not self._serves(server, client.uid):
            return 0
        if server.state == "FAULT":
            return _SERVER_NOT_READY
        most = next(most for since, most in _CLIENTS if server.devices.cuda_version >= since)
        return _MAX_CLIENTS if len(server.clients) >= most else 0

    def _serves(self, server: MpsServer, uid: int) -> bool:
        return self._multiuser or server.uid == uid

    def _server_for(self, client: MpsClient) -> MpsServer:
        """Return the server; start the client's if none, or none with clients, is in its way."""
        server = self.state.server
        if server is not None and not self._serves(server, client.uid) and not server.clients:
            self.stop_server(server)
            server = None
        return server or self.start_server(os.geteuid() if self._multiuser else client.uid)

    # Servers.

    def start_server(self, uid: int) -> MpsServer:
        """Start the server for a user."""
        server = MpsServer.start(uid, self.state.defaults.copy(), self.state.devices)
        self.state.server = server
        self._selector.register(
            server.output, selectors.EVENT_READ, lambda _: self._server_said(server)
        )
        self.log("control", f"Starting new server {server.pid} for user {uid}")
        return server

    def _server_said(self, server: MpsServer) -> None:
        if server.output.readline() == b"ready\n":
            server.state = "ACTIVE"
            self.log("server", "Start", server)
        else:
            self.log("control", f"Server {server.pid} exited")
            self.stop_server(server)
        self._settle()

    def stop_server(self, server: MpsServer) -> None:
        """End a server and forget it; its clients lose it."""
        self.state.server = None
        self._selector.unregister(server.output)
        server.end()
        for connection in server.clients:
            self._drop(connection)
        server.clients.clear()

    def quit(self, seconds: float) -> None:
        """Take no more clients, and end when there are none, or after `seconds`."""
        self._quit_at = time.monotonic() + seconds
