# SPDX-License-Identifier: Apache-2.0
"""The MPS control daemon of the simulated driver: its sockets, servers and clients.

Commands, environment, states and limits are those of NVIDIA's Multi-Process Service manual, release
615. simulator/README.md lists what the manual leaves open, and how it is assumed to be.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpushare.simulator import mps_commands, mps_modules
from gpushare.simulator.mps_settings import (
    MpsClient,
    MpsDevices,
    MpsLimits,
    MpsRoute,
    credentials,
)
from gpushare.simulator.mps_state import DEFAULT, MpsMode, MpsPartitions, MpsServer, MpsState, tell

#: Where protocol 2 takes commands, from the daemon's user only.
PRIVILEGED: Final = "control_privileged"
_PID_FILE: Final = "nvidia-cuda-mps-control.pid"
_MESSAGE_BYTES: Final = 8192

# CUresult, of cuda.h.
_LAUNCH_FAILED: Final = 719
_NOT_PERMITTED: Final = 800
_CONNECTION_FAILED: Final = 805
_SERVER_NOT_READY: Final = 807
_MAX_CLIENTS: Final = 808

#: Client contexts of a device: 60 since CUDA 13.1.
_CLIENTS: Final = ((13010, 60), (0, 48))
#: The driver from which on a fault stays with its static partition.
_ISOLATED_FAULTS: Final = 610


class MpsControlDaemon:
    """The control daemon."""

    def __init__(self, pipes: Path, logs: Path, mode: MpsMode, devices: MpsDevices) -> None:
        """Take the pipe directory; OSError if it cannot, FileExistsError if another has it."""
        self.pipes, self._logs, self._mode = pipes, logs, mode
        for folder in (pipes, logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.state = MpsState(mode, devices, MpsPartitions(mode.protocol))
        self._next = 0
        self._waiting: list[tuple[socket.socket, MpsClient]] = []
        self._quit_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[Path, socket.socket] = {}
        self.listen(None)
        (pipes / PRIVILEGED).unlink(missing_ok=True)  # of an earlier daemon
        if mode.protocol == 2:
            self._listen(pipes / PRIVILEGED, 0o755, self._accept_commands)
        (pipes / _PID_FILE).write_text(f"{os.getpid()}\n")

    # Sockets.

    def folder(self, route: MpsRoute | None) -> Path:
        """Return where the socket of a route is."""
        if route is None:
            return self.pipes
        # A server's own socket leads to its default namespace, which has another of its own.
        return self.pipes / route.server / route.namespace

    def listen(self, route: MpsRoute | None) -> None:
        """Take connections by a route; OSError, FileExistsError if another daemon does."""
        folder = self.folder(route)
        folder.mkdir(parents=True, exist_ok=True)
        self._listen(folder / "control", 0o666, self._accept, route)  # clients of any user

    def _listen(
        self,
        path: Path,
        mode: int,
        call: Callable[[socket.socket, MpsRoute | None], None],
        route: MpsRoute | None = None,
    ) -> None:
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
        self._selector.register(listener, selectors.EVENT_READ, (call, route))

    def stop_listening(self, route: MpsRoute) -> None:
        """Take no more connections by a route, and remove its folder."""
        folder = self.folder(route)
        self._stop_listening(folder / "control")
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    def _stop_listening(self, path: Path) -> None:
        listener = self._listeners.pop(path, None)
        if listener is not None:
            self._selector.unregister(listener)
            listener.close()
            path.unlink(missing_ok=True)

    def _accept(self, listener: socket.socket, route: MpsRoute | None) -> None:
        connection, _ = listener.accept()
        self._selector.register(connection, selectors.EVENT_READ, (self._first, route))

    def _accept_commands(self, listener: socket.socket, _: MpsRoute | None) -> None:
        connection, _ = listener.accept()
        self._selector.register(connection, selectors.EVENT_READ, (self._command, None))

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
                    call, route = key.data
                    call(key.fileobj, route)
        finally:
            for server in list(self.state.servers.values()):
                self.stop_server(server)
            for path in list(self._listeners):
                self._stop_listening(path)
            (self.pipes / _PID_FILE).unlink(missing_ok=True)
            self.log("control", "Exit")

    def _remaining(self) -> float:
        """Return how long the daemon runs on, in seconds."""
        if self._quit_at is None:
            return math.inf
        busy = any(server.clients for server in self.state.servers.values())
        return self._quit_at - time.monotonic() if busy else 0

    def log(self, who: str, text: str, server: MpsServer | None = None) -> None:
        """Write a line into the log of the daemon (`control`) or of a server (`server`)."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        pid = server.pid if server else os.getpid()
        folder = self._logs / server.name if server else self._logs
        folder.mkdir(exist_ok=True)
        with (folder / f"{who}.log").open("a", encoding="utf-8") as file:
            file.write(f"[{stamp} {who.title()} {pid:5}] {text}\n")

    def _first(self, connection: socket.socket, route: MpsRoute | None) -> None:
        """Read what a new connection is for: a client's, or, in protocol 3, a command's."""
        try:
            message = connection.recv(_MESSAGE_BYTES).decode()
            kind, _, rest = message.partition("\n")
            if kind == "client":
                self._arrive(connection, rest, route)
                return
            if self._mode.protocol == 3:
                self._answer(connection, kind, rest)
        except (OSError, ValueError):
            pass
        self._drop(connection)

    def _command(self, connection: socket.socket, _: object) -> None:
        """Read a command of protocol 2."""
        with contextlib.suppress(OSError, ValueError):
            kind, _, rest = connection.recv(_MESSAGE_BYTES).decode().partition("\n")
            self._answer(connection, kind, rest)
        self._drop(connection)

    def _answer(self, connection: socket.socket, kind: str, rest: str) -> None:
        status, text = self._carry_out(kind, rest, credentials(connection)[1])
        connection.send(f"{status}\n{text}".encode())

    def _carry_out(self, kind: str, text: str, uid: int) -> tuple[int, str]:
        """Return the exit status of a command, and what it prints."""
        self.log("control", text.strip().replace("\0", " "))
        if kind == "arguments":
            if self._mode.protocol == 2:
                return 1, "commands on the command line need protocol 3"
            return mps_modules.run_command(self, text.split("\0"), uid)
        if self._mode.protocol == 3:
            return 1, "protocol 3 has no interactive commands"
        return 0, mps_commands.run_command(self, text)

    # Clients.

    def _arrive(self, connection: socket.socket, environment: str, route: MpsRoute | None) -> None:
        pid, uid = credentials(connection)
        percentage, pinned, partition = environment.split("\n")
        self.log("control", f"Accepting connection... User {uid}, client process {pid}")
        self._selector.modify(connection, selectors.EVENT_READ, (self._message, None))
        if route is None:
            owner = 0 if self._mode.multiuser else uid
            route = MpsRoute(f"uid_{owner}" if self._mode.protocol == 3 else "")
        route = replace(route, namespace=route.namespace or DEFAULT)
        client = MpsClient(self._next, pid, uid, route, percentage, pinned, partition)
        self._waiting.append((connection, client))
        self._next += 1
        self._settle()

    def _message(self, connection: socket.socket, _: object) -> None:
        """Read from a client: it has faulted, or has ended."""
        try:
            message = connection.recv(64)
        except OSError:
            message = b""
        if message == b"fault":
            self._fault(connection)
            return
        self._waiting = [entry for entry in self._waiting if entry[0] is not connection]
        for server in self.state.servers.values():
            gone = server.clients.pop(connection, None)
            if gone is not None:
                self.log("server", f"Client {gone.pid} disconnected", server)
            if gone is not None and not server.clients and server.state == "FAULT":
                server.state = "ACTIVE"
                self.log("server", "Clients have exited: Server is ACTIVE again", server)
        self._drop(connection)
        self._settle()

    def _fault(self, connection: socket.socket) -> None:
        """Pass a fault on to the other clients of the server, or of the static partition."""
        server = next(
            (one for one in self.state.servers.values() if connection in one.clients), None
        )
        if server is None:
            return
        culprit = server.clients[connection]
        others = {key: other for key, other in server.clients.items() if key is not connection}
        owner = "" if self._mode.protocol == 2 else server.name
        chosen = self.state.partitions.chosen(culprit.partition, owner)
        if chosen is not None and server.devices.driver_major >= _ISOLATED_FAULTS:
            others = {
                key: other
                for key, other in others.items()
                if self.state.partitions.chosen(other.partition, owner) == chosen
            }
            text = f"Client {culprit.pid} has caused a fatal fault in partition {chosen.id}"
        else:
            server.state = "FAULT"
            text = f"Client {culprit.pid} has caused a fatal fault: Server is in FAULT"
        self.log("server", text, server)
        for other in others:
            tell(other, str(_LAUNCH_FAILED))

    def _settle(self) -> None:
        """Give waiting clients to their servers, as far as these take them.

        In protocol 2 in their order: a client that waits for the server of its user keeps those
        behind it waiting.
        """
        for connection, client in list(self._waiting):
            error = self._refusal(client)
            if error:
                reply = f"error {error}"
            elif not self._is_ready(client):
                if self._mode.protocol == 2:
                    return
                continue
            else:
                server = self.state.servers[client.route.server]
                reply = server.grant(client, self.state.partitions, static=self._mode.static)
                server.clients[connection] = client
                self.log("server", f"New client {client.pid} connected", server)
            self._waiting.remove((connection, client))
            tell(connection, reply)

    def _refusal(self, client: MpsClient) -> int:
        """Return the CUresult with which a client is refused, 0 for none."""
        server = self.state.servers.get(client.route.server)
        if self._quit_at is not None:
            return _SERVER_NOT_READY
        if os.geteuid() not in (0, client.uid):
            return _CONNECTION_FAILED
        if server is None:
            return 0
        if not self._serves(server, client.uid):
            return _NOT_PERMITTED if self._mode.protocol == 3 else 0
        if server.state == "FAULT":
            return _SERVER_NOT_READY
        most = next(most for since, most in _CLIENTS if server.devices.cuda_version >= since)
        return _MAX_CLIENTS if len(server.clients) >= most else 0

    def _serves(self, server: MpsServer, uid: int) -> bool:
        return self._mode.multiuser or server.uid == uid

    def _is_ready(self, client: MpsClient) -> bool:
        """Return whether the client's server takes it; start one if none is in the way."""
        name = client.route.server
        server = self.state.servers.get(name)
        if server is not None and not self._serves(server, client.uid):
            if server.clients:
                return False  # until the last of them has exited
            self.stop_server(server)
            server = None
        if server is None:
            server = self.start_server(os.geteuid() if self._mode.multiuser else client.uid, name)
        elif server.state == "EXITED":
            server = self.start_server(server.uid, name, server.devices, server.namespaces)
        return server.state == "ACTIVE"

    # Servers.

    def start_server(
        self,
        uid: int,
        name: str = "",
        devices: MpsDevices | None = None,
        namespaces: dict[str, MpsLimits] | None = None,
    ) -> MpsServer:
        """Start the server for a user; in protocol 3, one of a name, with sockets of its own."""
        limits = {DEFAULT: self.state.defaults.copy()} if namespaces is None else namespaces
        server = MpsServer.start(name, uid, limits, devices or self.state.devices)
        if name and name not in self.state.servers:
            for namespace in ("", DEFAULT):
                self.listen(MpsRoute(name, namespace))
        self.state.servers[name] = server
        self._selector.register(
            server.output, selectors.EVENT_READ, (lambda *_: self._server_said(server), None)
        )
        self.log("control", f"Starting new server {server.pid} for user {uid}")
        return server

    def _server_said(self, server: MpsServer) -> None:
        if server.output.readline() == b"ready\n":
            server.state = "ACTIVE"
            self.log("server", "Start", server)
        else:
            self.log("control", f"Server {server.pid} exited")
            if self._mode.protocol == 2 or server.state == "INITIALIZING":
                # In protocol 3, whoever comes finds no socket, and runs without MPS.
                self.stop_server(server)
            else:
                self._lose(server)
        self._settle()

    def _lose(self, server: MpsServer) -> None:
        """End a server's process; its clients lose it."""
        if server.state == "EXITED":
            return
        server.state = "EXITED"
        self._selector.unregister(server.output)
        server.end()
        for connection in server.clients:
            self._drop(connection)
        server.clients.clear()

    def _close_sockets(self, server: MpsServer) -> None:
        for namespace in (*server.namespaces, ""):
            self.stop_listening(MpsRoute(server.name, namespace))
        for connection, client in list(self._waiting):
            if client.route.server == server.name:
                self._waiting.remove((connection, client))
                self._drop(connection)

    def stop_server(self, server: MpsServer) -> None:
        """End a server and forget it; its clients lose it."""
        del self.state.servers[server.name]
        self._lose(server)
        if server.name:
            self._close_sockets(server)

    def quit(self, seconds: float) -> None:
        """Take no more clients, and end when there are none, or after `seconds`."""
        self._quit_at = time.monotonic() + seconds
