# SPDX-License-Identifier: Apache-2.0
"""`nvidia-cuda-mps-control` of the simulated driver: the MPS control daemon, and its commands.

Commands, environment, states and limits are those of protocol 2 in NVIDIA's Multi-Process Service
manual, release 615. simulator/README.md lists what the manual leaves open, and how it is assumed
to be.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final, TextIO

from gpushare.simulator.mps_commands import run_command
from gpushare.simulator.mps_server import PIPE_ENV, MpsServer, tell
from gpushare.simulator.mps_settings import MpsClient, MpsDevices, MpsLimits, credentials

LOG_ENV: Final = "CUDA_MPS_LOG_DIRECTORY"
_PIPE_DEFAULT: Final = "/tmp/nvidia-mps"  # noqa: S108 - the manual's, "CUDA_MPS_PIPE_DIRECTORY"
_LOG_DEFAULT: Final = "/var/log/nvidia-mps"
_PID_FILE: Final = "nvidia-cuda-mps-control.pid"
_MESSAGE_BYTES: Final = 8192

# CUresult, of cuda.h.
_LAUNCH_FAILED: Final = 719
_CONNECTION_FAILED: Final = 805
_SERVER_NOT_READY: Final = 807
_MAX_CLIENTS: Final = 808

#: Client contexts of a device: 60 since CUDA 13.1.
_CLIENTS: Final = ((13010, 60), (0, 48))


class MpsControl:
    """The control daemon."""

    def __init__(self, pipes: Path, logs: Path, *, multiuser: bool) -> None:
        """Take the pipe directory; OSError if it cannot, FileExistsError if another has it."""
        self._pipes, self._logs, self._multiuser = pipes, logs, multiuser
        for folder in (pipes, logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.devices = MpsDevices.visible()
        self.defaults = MpsLimits()
        self.server: MpsServer | None = None
        self._next = 0
        self._waiting: list[tuple[socket.socket, MpsClient]] = []
        self._quit_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._listener = self._listen()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _listen(self) -> socket.socket:
        path = self._pipes / "control"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
            else:
                raise FileExistsError(f"{path}: An instance of this daemon is already running")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        path.chmod(0o666)  # clients of any user
        listener.listen(128)
        (self._pipes / _PID_FILE).write_text(f"{os.getpid()}\n")
        return listener

    def run(self) -> None:
        """Serve until `quit`."""
        self._log("control", "Start")
        try:
            while self._remaining() > 0:
                left = self._remaining()
                for key, _ in self._selector.select(None if left == math.inf else left):
                    key.data(key.fileobj)
        finally:
            self.stop_server()
            (self._pipes / "control").unlink(missing_ok=True)
            (self._pipes / _PID_FILE).unlink(missing_ok=True)
            self._log("control", "Exit")

    def _remaining(self) -> float:
        """Return how long the daemon runs on, in seconds."""
        if self._quit_at is None:
            return math.inf
        return self._quit_at - time.monotonic() if self._has_clients() else 0

    def _has_clients(self) -> bool:
        return self.server is not None and bool(self.server.clients)

    def _log(self, who: str, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        pid = self.server.pid if who == "server" and self.server else os.getpid()
        with (self._logs / f"{who}.log").open("a", encoding="utf-8") as file:
            file.write(f"[{stamp} {who.title()} {pid:5}] {text}\n")

    # Connections.

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self._selector.register(connection, selectors.EVENT_READ, self._first)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()

    def _first(self, connection: socket.socket) -> None:
        """Read what a new connection is for."""
        try:
            message = connection.recv(_MESSAGE_BYTES).decode()
            kind, _, rest = message.partition("\n")
            if kind == "client":
                self._arrive(connection, rest)
                return
            self._log("control", rest.strip())
            connection.send(run_command(self, rest).encode() or b"\n")
        except (OSError, UnicodeDecodeError):
            pass
        self._drop(connection)

    def _arrive(self, connection: socket.socket, environment: str) -> None:
        pid, uid = credentials(connection)
        percentage, _, pinned = environment.partition("\n")
        self._log("control", f"Accepting connection... User {uid}, client process {pid}")
        self._selector.modify(connection, selectors.EVENT_READ, self._message)
        self._waiting.append((connection, MpsClient(self._next, pid, uid, percentage, pinned)))
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
        server = self.server
        if server is not None:
            gone = server.clients.pop(connection, None)
            if gone is not None:
                self._log("server", f"Client {gone.pid} disconnected")
            if not server.clients and server.state == "FAULT":
                server.state = "ACTIVE"
                self._log("server", "Clients have exited: Server is ACTIVE again")
        self._drop(connection)
        self._settle()

    def _fault(self, connection: socket.socket) -> None:
        server = self.server
        culprit = server.clients.get(connection) if server else None
        if server is None or culprit is None:
            return
        server.state = "FAULT"
        self._log("server", f"Client {culprit.pid} has caused a fatal fault: Server is in FAULT")
        for other in server.clients:
            if other is not connection:
                tell(other, str(_LAUNCH_FAILED))

    # The server.

    def _settle(self) -> None:
        """Give waiting clients to the server, in order, as far as it takes them."""
        while self._waiting:
            connection, client = self._waiting[0]
            error = self._refusal(client)
            if error:
                reply = f"error {error}"
            elif not self._is_ready(client.uid):
                return
            else:
                assert self.server is not None
                self.server.clients[connection] = client
                reply = self._grant(client, self.server.limits)
                self._log("server", f"New client {client.pid} connected")
            self._waiting.pop(0)
            tell(connection, reply)

    def _refusal(self, client: MpsClient) -> int:
        """Return the CUresult with which a client is refused, 0 for none."""
        server = self.server
        if self._quit_at is not None:
            return _SERVER_NOT_READY
        if os.geteuid() not in (0, client.uid):
            return _CONNECTION_FAILED
        if server is None or not self._serves(server, client.uid):
            return 0
        if server.state == "FAULT":
            return _SERVER_NOT_READY
        most = next(most for since, most in _CLIENTS if self.devices.cuda_version >= since)
        return _MAX_CLIENTS if len(server.clients) >= most else 0

    def _serves(self, server: MpsServer, uid: int) -> bool:
        return self._multiuser or server.uid == uid

    def _is_ready(self, uid: int) -> bool:
        """Return whether a server for `uid` takes clients; start one if none is in the way."""
        server = self.server
        if server is not None and not self._serves(server, uid):
            if server.clients:
                return False  # until the last of them has exited
            self.stop_server()
        if self.server is None:
            self.start_server(os.geteuid() if self._multiuser else uid)
        return self.server is not None and self.server.state == "ACTIVE"

    def start_server(self, uid: int) -> None:
        """Start the server for a user."""
        server = self.server = MpsServer.start(uid, self.defaults, self.devices)
        self._selector.register(server.output, selectors.EVENT_READ, self._server_said)
        self._log("control", f"Starting new server {server.pid} for user {uid}")

    def _server_said(self, _: object) -> None:
        server = self.server
        assert server is not None
        if server.output.readline() == b"ready\n":
            server.state = "ACTIVE"
            self._log("server", "Start")
        else:
            self._log("control", f"Server {server.pid} exited")
            self.stop_server()
        self._settle()

    def stop_server(self) -> None:
        """End the server, if there is one; its clients lose it."""
        server = self.server
        if server is None:
            return
        self.server = None
        self._selector.unregister(server.output)
        server.end()
        for connection in server.clients:
            self._drop(connection)

    def _grant(self, client: MpsClient, limits: MpsLimits) -> str:
        """Return a client's reply: what the server allows it, and less where it asks for less."""
        granted = limits.narrowed(client, self.devices)
        lines = [f"{uuid} {size}" for uuid, size in granted.pinned_bytes(self.devices).items()]
        return "\n".join([f"ok {granted.percentage}", ",".join(self.devices.uuids), *lines])

    def quit(self, seconds: float) -> None:
        """Take no more clients, and end when there are none, or after `seconds`."""
        self._quit_at = time.monotonic() + seconds


def send_commands(pipes: Path, lines: TextIO, printed: TextIO) -> int:
    """Send commands to the running daemon and print the replies; return the exit status."""
    for line in lines:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(str(pipes / "control"))
                connection.send(f"command\n{line}".encode())
                reply = connection.recv(1 << 16).decode().strip("\n")
        except OSError:
            sys.stderr.write("Cannot find MPS control daemon process\n")
            return 1
        if reply:
            printed.write(f"{reply}\n")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run `nvidia-cuda-mps-control [-d | -f] [-multiuser-server]`; without -d and -f, commands."""
    options = set(sys.argv[1:] if arguments is None else arguments)
    pipes = Path(os.environ.get(PIPE_ENV, _PIPE_DEFAULT))
    unknown = options - {"-d", "-f", "-multiuser-server"}
    if unknown:
        sys.stderr.write(f"{min(unknown)}: unknown option\n")
        return 1
    if not options & {"-d", "-f"}:
        return send_commands(pipes, sys.stdin, sys.stdout)
    try:
        multiuser = "-multiuser-server" in options
        control = MpsControl(
            pipes, Path(os.environ.get(LOG_ENV, _LOG_DEFAULT)), multiuser=multiuser
        )
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if "-d" in options and os.fork() > 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    control.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
