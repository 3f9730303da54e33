# SPDX-License-Identifier: Apache-2.0
"""The commands that the simulated MPS control daemon carries out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from gpushare.simulator.mps_settings import MpsCommandError
from gpushare.simulator.mps_state import ControlDaemon, MpsServer, tell

_CLIENT_TERMINATED: Final = 810  # CUresult


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
    server = daemon.state.server
    if server is None or server.pid != int(word):
        raise MpsCommandError(f"Server {word} not found")
    return server


def _get_server_list(daemon: ControlDaemon, _: list[str]) -> str:
    server = daemon.state.server
    return str(server.pid) if server else ""


def _get_server_status(daemon: ControlDaemon, words: list[str]) -> str:
    return _of(daemon, words[0]).state


def _get_client_list(daemon: ControlDaemon, words: list[str]) -> str:
    return "\n".join(str(client.pid) for client in _of(daemon, words[0]).clients.values())


def _ps(daemon: ControlDaemon, words: list[str]) -> str:
    server = _of(daemon, words[1]) if words[:1] == ["-p"] else daemon.state.server
    rows = [("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")]
    if server is not None:
        rows += [
            (str(client.pid), str(client.number), str(server.pid), uuid[:22], *client.described())
            for client in server.clients.values()
            for uuid in daemon.state.devices.uuids
        ]
    return _table(rows)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(" ".join(f"{word:<22}" for word in row).rstrip() for row in rows)


def _get_device_client_list(daemon: ControlDaemon, words: list[str]) -> str:
    server = _of(daemon, words[0]) if words else daemon.state.server
    pids = [str(client.pid) for client in server.clients.values()] if server else []
    return "\n".join(" ".join((uuid, *pids)) for uuid in daemon.state.devices.uuids)


def _device_query(daemon: ControlDaemon, words: list[str]) -> str:
    servers = [word for word in words if word != "--csv"]
    server = _of(daemon, servers[0]) if servers else daemon.state.server
    rows = [("Ordinal", "Server", "PCI ID", "Device UUID", "Name", "Total SMs")]
    rows += [
        (
            str(ordinal),
            str(server.pid) if server else "-",
            device.pci,
            device.uuid,
            device.name,
            str(device.multiprocessors),
        )
        for ordinal, device in enumerate(daemon.state.devices.every)
    ]
    return "\n".join(map(",".join, rows)) if "--csv" in words else _table(rows)


def _start_server(daemon: ControlDaemon, words: list[str]) -> str:
    if words[0] != "-uid":
        raise MpsCommandError("start_server -uid UID")
    if daemon.state.server is None:
        daemon.start_server(int(words[1]))
    return ""


def _shutdown_server(daemon: ControlDaemon, words: list[str]) -> str:
    server = _of(daemon, words[0])
    if server.clients and words[1:] != ["-f"]:
        raise MpsCommandError(f"Server {words[0]} has clients")
    daemon.stop_server(server)
    return ""


def _terminate_client(daemon: ControlDaemon, words: list[str]) -> str:
    for connection, client in _of(daemon, words[0]).clients.items():
        if client.pid == int(words[1]):
            tell(connection, str(_CLIENT_TERMINATED))
            return "0"
    raise MpsCommandError(f"Client {words[1]} not found")


def _quit(daemon: ControlDaemon, words: list[str]) -> str:
    daemon.quit(float(words[1]) if words[:1] == ["-t"] else math.inf)
    return ""


def _default_percentage(daemon: ControlDaemon, words: list[str]) -> str:
    return daemon.state.defaults.set_percentage(words)


def _percentage(daemon: ControlDaemon, words: list[str]) -> str:
    return _of(daemon, words[0]).limits.set_percentage(words[1:])


def _default_pinned(daemon: ControlDaemon, words: list[str]) -> str:
    return daemon.state.defaults.set_pinned(words)


def _pinned(daemon: ControlDaemon, words: list[str]) -> str:
    return _of(daemon, words[0]).limits.set_pinned(words[1:])


def _default_priority(daemon: ControlDaemon, words: list[str]) -> str:
    return daemon.state.defaults.set_priority(words)


_COMMANDS: Final[dict[str, Callable[[ControlDaemon, list[str]], str]]] = {
    "get_server_list": _get_server_list,
    "get_server_status": _get_server_status,
    "get_client_list": _get_client_list,
    "get_device_client_list": _get_device_client_list,
    "device_query": _device_query,
    "ps": _ps,
    "start_server": _start_server,
    "shutdown_server": _shutdown_server,
    "terminate_client": _terminate_client,
    "quit": _quit,
    "get_default_active_thread_percentage": _default_percentage,
    "set_default_active_thread_percentage": _default_percentage,
    "get_active_thread_percentage": _percentage,
    "set_active_thread_percentage": _percentage,
    "get_default_client_priority": _default_priority,
    "set_default_client_priority": _default_priority,
    "get_default_device_pinned_mem_limit": _default_pinned,
    "set_default_device_pinned_mem_limit": _default_pinned,
    "get_device_pinned_mem_limit": _pinned,
    "set_device_pinned_mem_limit": _pinned,
}
