# SPDX-License-Identifier: Apache-2.0
"""A stand-in for `nvidia-cuda-mps-control`, for what NVIDIA's own shows only on a card.

That is a server with clients, and their faults. Control daemon and server are one process here. It
answers as NVIDIA's own does (tests/c/real_driver/mps_transcript.txt, and an H100 with driver 580),
but refuses nothing, and its limits have no effect.
"""

from __future__ import annotations

import ctypes
import os
import re
import selectors
import socket
import struct
import sys
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.simulator import DEVICE_ENV
from gpushare.simulator.device_file import Header, Profile, libraries

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"
_SOCKETS: Final = {"control": 0o666, "control_privileged": 0o755}
_NO_DAEMON: Final = "Cannot find MPS control daemon process\n"
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred, unix(7)
_LAUNCH_FAILED, _SERVER_NOT_READY, _CLIENT_TERMINATED = 719, 807, 810  # CUresult, of cuda.h


class StandIn:
    """The control daemon with its server."""

    def __init__(self, pipes: Path) -> None:
        """Listen in the pipe directory; OSError if it cannot."""
        self._state = ""  # of the server; "": none runs
        self._clients: dict[socket.socket, int] = {}  # with their processes
        self._settings = {"default_active_thread_percentage": "100.0"}
        self._selector = selectors.DefaultSelector()
        with Path(os.environ[DEVICE_ENV]).open("rb") as device:
            header = Header.from_buffer_copy(device.read(ctypes.sizeof(Header)))
            size = ctypes.sizeof(Profile)
            cards = [Profile.from_buffer_copy(device.read(size)) for _ in range(header.card_count)]
        uuids = [f"GPU-{uuid.UUID(bytes=bytes(card.uuid))}" for card in cards]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        self._uuids = [uuid for uuid in uuids if uuid in visible] or uuids
        self._has_status = int(header.driver_version.split(b".")[0]) > 535
        for name, mode in _SOCKETS.items():
            path = pipes / name
            path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(str(path))
            path.chmod(mode)
            listener.listen(128)
            self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def run(self) -> None:
        """Serve until `quit`."""
        self._log("Starting control daemon")
        while self._state != "quit":
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _log(self, text: str) -> None:
        sys.stdout.write(f"[Control {os.getpid()}] {text}\n")
        sys.stdout.flush()

    def _accept(self, listener: socket.socket) -> None:
        self._selector.register(listener.accept()[0], selectors.EVENT_READ, self._read)

    def _read(self, connection: socket.socket) -> None:
        """Read a command, or what a client says; nothing is its end."""
        message = ""
        with suppress(OSError):
            message = connection.recv(8192).decode(errors="replace").strip()
        if message == "client":
            self._connect(connection)
        elif message == "fault":
            pid = self._clients[connection]
            self._state = "FAULT"
            self._log(f"Client process {pid} encountered a fatal GPU error.")
            self._tell(set(self._clients) - {connection}, str(_LAUNCH_FAILED))
        else:
            if message:
                self._tell([connection], f"{self._answer(*message.split())}\n")
            self._selector.unregister(connection)
            connection.close()
            if self._clients.pop(connection, 0) and not self._clients:
                self._state = "ACTIVE"

    def _connect(self, connection: socket.socket) -> None:
        option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(option)
        self._log(f"NEW CLIENT {pid} from user {uid}")
        if self._state == "FAULT":
            self._tell([connection], f"error {_SERVER_NOT_READY}")
            return
        if not self._state:
            self._start_server()
        self._clients[connection] = pid
        self._tell([connection], "ok\n" + ",".join(self._uuids))

    def _start_server(self) -> None:
        """Have a context on each card; it is the client of no server itself."""
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self._uuids)
        cuda, context = ctypes.CDLL(str(libraries() / "libcuda.so.1")), ctypes.c_void_p()
        cuda.cuInit(0)
        for ordinal in range(len(self._uuids)):
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal)
        self._state = "ACTIVE"

    @staticmethod
    def _tell(connections: Iterable[socket.socket], text: str) -> None:
        for connection in connections:
            with suppress(OSError):  # it may have ended
                connection.send(text.encode())

    def _answer(self, command: str, *words: str) -> str:
        """Carry out a command, and return what it prints."""
        self._log(f"Cmd:{' '.join((command, *words))}")
        answers: dict[str, Callable[[], str]] = {
            "get_server_list": lambda: str(os.getpid()) if self._state else "",
            "ps": self._ps,
            "quit": self._quit,
        }
        if command in answers:
            return answers[command]()
        limit = re.fullmatch(r"([gs]et)_(default_)?(.+_percentage|.+_mem_limit)", command)
        of_server = bool(limit and not limit[2]) or command == "terminate_client"
        if command == "get_server_status" and self._has_status:
            of_server = True
        if of_server and (not self._state or words[:1] != (str(os.getpid()),)):
            return f"Server {words[0]} not found"
        if limit:
            values = words if limit[2] else words[1:]
            return self._limit(f"{limit[2] or ''}{limit[3]}", *values)
        if of_server:
            return self._terminate(words[1]) if len(words) > 1 else self._state
        return f'Unknown command "{command}"'

    def _limit(self, name: str, *values: str) -> str:
        """Set the limit `name` if there is a value; return what is printed."""
        known = self._settings.get(name, self._settings.get(f"default_{name}", ""))
        if name.endswith("percentage"):
            if values and 0 < float(values[0]) <= 100:
                known = self._settings[name] = str(float(values[0]))
            return known
        if len(values) > 1:
            size = re.fullmatch(r"([0-9]+)([MG])", values[1])
            mib = int(size[1]) << (10 if size[2] == "G" else 0) if size else 0
            self._settings[name] = f"{mib >> 10}G" if mib >> 10 else f"{mib}M" if mib else ""
            return ""
        return known

    def _ps(self) -> str:
        if not self._state:
            return "Server not found"
        rows = [f"{pid} 0 {os.getpid()} {self._uuids[0]} 0 -" for pid in self._clients.values()]
        return "\n".join(["PID ID SERVER DEVICE NAMESPACE COMMAND", *rows])

    def _terminate(self, pid: str) -> str:
        clients = [one for one, of in self._clients.items() if str(of) == pid]
        self._tell(clients, str(_CLIENT_TERMINATED))
        return "0" if clients else "1"

    def _quit(self) -> str:
        self._state = "quit"
        return ""


def main() -> int:
    """Run the daemon with -f, else send it the commands on the standard input."""
    pipes, options = Path(os.environ.pop(PIPE_ENV)), sys.argv[1:]
    if options:
        Path("/proc/self/comm").write_text("nvidia-cuda-mps-server")  # as the driver lists it
        StandIn(pipes).run()
        return 0
    name = next((name for name in reversed(_SOCKETS) if (pipes / name).exists()), "control")
    for command in sys.stdin:
        answer = ""
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(pipes / name))
            connection.send(command.encode())
            answer = connection.recv(1 << 20).decode()
        if not answer:
            sys.stderr.write(_NO_DAEMON)
            return 1
        sys.stdout.write(answer.removeprefix("\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
