# SPDX-License-Identifier: Apache-2.0
"""The commands of protocol 2 that the simulated MPS control daemon carries out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

from gpushare.simulator.mps_server import MpsServer, tell
from gpushare.simulator.mps_settings import MpsDevices, MpsError, MpsLimits

_CLIENT_TERMINATED: Final = 810  # CUresult


class ControlDaemon(Protocol):
    """What commands work on."""

    server: MpsServer | None
    defaults: MpsLimits
    devices: MpsDevices

    def start_server(self, uid: int) -> None:
        """Start the server for a user."""

    def stop_server(self) -> None:
        """End the server, if there is one."""

    def quit(self, seconds: float) -> None:
        """End when there are no clients, or after `seconds`."""


def run_command(daemon: ControlDaemon, line: str) -> str:
    """Return what a command prints."""
    words = line.split()
    if not words:
        return ""
    run = _COMMANDS.get(words[0])
    if run is None:
        return f"Unrecognized command: {words[0]}"
    try:
        return run(daemon, words[1:])
    except (ValueError, IndexError) as error:
        return f"Invalid arguments for {words[0]}: {error}"


def _of(daemon: ControlDaemon, word: str) -> MpsServer:
    server = daemon.server
    if server is None or server.pid != int(word):
        raise MpsError(f"Server {word} not found")
    return server


def _get_server_list(daemon: ControlDaemon, _: list[str]) -> str:
    return str(daemon.server.pid) if daemon.server else ""


def _get_server_status(daemon: ControlDaemon, words: list[str]) -> str:
    return _of(daemon, words[0]).state


def _get_client_list(daemon: ControlDaemon, words: list[str]) -> str:
    return "\n".join(str(client.pid) for client in _of(daemon, words[0]).clients.values())


def _ps(daemon: ControlDaemon, words: list[str]) -> str:
    server = _of(daemon, words[1]) if words[:1] == ["-p"] else daemon.server
    rows = [("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")]
    if server is not None:
        rows += [
            (str(client.pid), str(client.number), str(server.pid), uuid[:22], *client.described())
            for client in server.clients.values()
            for uuid in daemon.devices.uuids
        ]
    return "\n".join(" ".join(f"{word:<22}" for word in row).rstrip() for row in rows)


def _start_server(daemon: ControlDaemon, words: list[str]) -> str:
    if words[0] != "-uid":
        raise MpsError("start_server -uid UID")
    if daemon.server is None:
        daemon.start_server(int(words[1]))
    return ""


def _shutdown_server(daemon: ControlDaemon, words: list[str]) -> str:
    if _of(daemon, words[0]).clients and words[1:] != ["-f"]:
        raise MpsError(f"Server {words[0]} has clients")
    daemon.stop_server()
    return ""


def _terminate_client(daemon: ControlDaemon, words: list[str]) -> str:
    for connection, client in _of(daemon, words[0]).clients.items():
        if client.pid == int(words[1]):
            tell(connection, str(_CLIENT_TERMINATED))
            return ""
    raise MpsError(f"Client {words[1]} not found")


def _quit(daemon: ControlDaemon, words: list[str]) -> str:
    daemon.quit(float(words[1]) if words[:1] == ["-t"] else math.inf)
    return ""


def _default_percentage(daemon: ControlDaemon, words: list[str]) -> str:
    return daemon.defaults.set_percentage(words)


def _percentage(daemon: ControlDaemon, words: list[str]) -> str:
    return _of(daemon, words[0]).limits.set_percentage(words[1:])


def _default_pinned(daemon: ControlDaemon, words: list[str]) -> str:
    return daemon.defaults.set_pinned(words)


def _pinned(daemon: ControlDaemon, words: list[str]) -> str:
    return _of(daemon, words[0]).limits.set_pinned(words[1:])


_COMMANDS: Final[dict[str, Callable[[ControlDaemon, list[str]], str]]] = {
    "get_server_list": _get_server_list,
    "get_server_status": _get_server_status,
    "get_client_list": _get_client_list,
    "ps": _ps,
    "start_server": _start_server,
    "shutdown_server": _shutdown_server,
    "terminate_client": _terminate_client,
    "quit": _quit,
    "get_default_active_thread_percentage": _default_percentage,
    "set_default_active_thread_percentage": _default_percentage,
    "get_active_thread_percentage": _percentage,
    "set_active_thread_percentage": _percentage,
    "get_default_device_pinned_mem_limit": _default_pinned,
    "set_default_device_pinned_mem_limit": _default_pinned,
    "get_device_pinned_mem_limit": _pinned,
    "set_device_pinned_mem_limit": _pinned,
}
