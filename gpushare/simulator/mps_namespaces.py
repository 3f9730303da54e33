# SPDX-License-Identifier: Apache-2.0
"""The servers and namespaces of protocol 3: the commands of the modules `server` and `namespace`.

Limits of a namespace cannot be changed, and it cannot be deleted, while it has clients.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpushare.simulator.mps_commands import CLIENT_TERMINATED
from gpushare.simulator.mps_settings import (
    ALL,
    MpsClient,
    MpsCommandError,
    MpsDevices,
    MpsLimits,
    MpsRoute,
    priority_of,
    size_of,
)
from gpushare.simulator.mps_state import DEFAULT, ControlDaemon, MpsServer, tell

LIMITS: Final = ("pinned-memory-limit", "active-thread-percentage", "client-priority")
_NAME: Final = re.compile(r"[a-z0-9_]{1,64}")
STATUS: Final = {"INITIALIZING": "Initializing", "ACTIVE": "Ready", "FAULT": "Fault"}


# server


def server_of(daemon: ControlDaemon, name: str) -> MpsServer:
    """Return a server; MpsCommandError."""
    if name not in daemon.state.servers:
        raise MpsCommandError(f"Server '{name}' not found")
    return daemon.state.servers[name]


def check_name(name: str) -> str:
    """Return a name that is allowed; MpsCommandError for others."""
    if _NAME.fullmatch(name) is None:
        raise MpsCommandError(f"{name}: lowercase letters, digits and underscores only, up to 64")
    return name


def create_server(daemon: ControlDaemon, name: str, uid: int, devices: str | None) -> MpsServer:
    """Start a server; a device that does not exist is no error. MpsCommandError, OSError."""
    if check_name(name) in daemon.state.servers:
        raise MpsCommandError(f"Server '{name}' already exists")
    if daemon.state.mode.multiuser and uid != 0:
        raise MpsCommandError(f"--uid={uid}: only 0 in multiuser mode")
    every = daemon.state.devices
    allowed: MpsDevices = every if devices is None else every.only(devices.split(","))
    return daemon.start_server(uid, name, allowed)


def _server_create(daemon: ControlDaemon, request: ModuleRequest) -> str:
    uid = int(request.options.get("uid", request.uid))
    request.check_owner(uid)
    if not request.words and "uid" not in request.options:
        raise MpsCommandError("server create: a name or --uid is missing")
    if request.options.get("locality-domains", "false") != "false":
        raise MpsCommandError("--locality-domains: not supported by this device")
    name = request.words[0] if request.words else f"uid_{uid}"
    create_server(daemon, name, uid, request.options.get("allowed-devices"))
    return f"Server '{name}' created"


def _server_delete(daemon: ControlDaemon, request: ModuleRequest) -> str:
    server = server_of(daemon, request.word(0, "the server"))
    request.check_owner(server.uid)
    if server.clients and "force" not in request.options:
        raise MpsCommandError(f"Server '{server.name}' has active clients")
    for connection in list(server.clients):
        tell(connection, str(CLIENT_TERMINATED))
    daemon.state.partitions.remove_server(server.name)
    daemon.stop_server(server)
    return f"Server '{server.name}' deleted"


def _server_list(daemon: ControlDaemon, request: ModuleRequest) -> Rows:
    names = request.words or list(daemon.state.servers)
    return [
        {
            "name": server.name,
            "uid": str(server.uid),
            "pid": "-" if server.state == "EXITED" else str(server.pid),
            "status": STATUS.get(server.state, "Exited"),
            "pipe-directory": str(daemon.folder(MpsRoute(server.name, ""))),
            "allowed-devices": ";".join(server.devices.uuids) or "-",
            "context-ids": "-",
        }
        for server in (server_of(daemon, name) for name in names)
    ]


def _server_set(daemon: ControlDaemon, request: ModuleRequest) -> str:
    server = server_of(daemon, request.word(0, "the server"))
    request.check_owner(server.uid)
    set_limits(server.limits, request.options)
    return ""


def _server_get(daemon: ControlDaemon, request: ModuleRequest) -> str:
    return field_of(_server_list(daemon, _only(request)), request.word(1, "the field"))


def _only(request: ModuleRequest) -> ModuleRequest:
    word = request.word(0, "the name")
    return ModuleRequest(request.module, request.verb, [word], request.options, request.uid)


# namespace


def set_limits(limits: MpsLimits, values: dict[str, str]) -> None:
    """Set those of the limits that are given, all or none; MpsCommandError."""
    given = {name: value for name, value in values.items() if name in LIMITS}
    if not given:
        raise MpsCommandError("at least one limit is needed")
    changed = limits.copy()
    for name, value in given.items():
        if name == "pinned-memory-limit":
            size_of(value, "KMG")
            changed.pinned = {ALL: value}
        elif name == "active-thread-percentage":
            changed.set_percentage([value], least=1)
        else:
            changed.priority = priority_of(value)
    limits.percentage, limits.pinned = changed.percentage, changed.pinned
    limits.priority = changed.priority


def create_namespace(daemon: ControlDaemon, server: MpsServer, name: str) -> MpsLimits:
    """Create a namespace, without limits; MpsCommandError, OSError."""
    if check_name(name) in server.namespaces:
        raise MpsCommandError(f"Namespace '{name}' already exists")
    daemon.listen(MpsRoute(server.name, name))
    server.namespaces[name] = MpsLimits()
    return server.namespaces[name]


def _namespace_create(daemon: ControlDaemon, request: ModuleRequest) -> str:
    server = server_of(daemon, request.option("server"))
    request.check_owner(server.uid)
    create_namespace(daemon, server, request.word(0, "the namespace"))
    return f"Namespace '{request.words[0]}' created"


def _namespace(daemon: ControlDaemon, request: ModuleRequest, server: str) -> tuple[MpsServer, str]:
    place, name = server_of(daemon, server), request.word(0, "the namespace")
    if name not in place.namespaces:
        raise MpsCommandError(f"Namespace '{name}' not found")
    return place, name


def _clients_of(server: MpsServer, namespace: str) -> list[MpsClient]:
    return [client for client in server.clients.values() if client.route.namespace == namespace]


def _namespace_delete(daemon: ControlDaemon, request: ModuleRequest) -> str:
    server, name = _namespace(daemon, request, request.option("server"))
    request.check_owner(server.uid)
    if name == DEFAULT:
        raise MpsCommandError("the default namespace cannot be deleted")
    if _clients_of(server, name) and "force" not in request.options:
        raise MpsCommandError(f"Namespace '{name}' has active clients")
    for connection, client in server.clients.items():
        if client.route.namespace == name:
            tell(connection, str(CLIENT_TERMINATED))
    daemon.stop_listening(MpsRoute(server.name, name))
    del server.namespaces[name]
    return f"Namespace '{name}' deleted"


def _namespace_list(daemon: ControlDaemon, request: ModuleRequest) -> Rows:
    named = request.options.get("server")
    servers = daemon.state.servers.values() if named is None else [server_of(daemon, named)]
    return [
        {
            "name": name,
            "server": server.name,
            "server-status": STATUS.get(server.state, "Exited"),
            "pinned-memory-limit": limits.pinned.get(ALL, "-"),
            "active-thread-percentage": f"{limits.percentage:.2f}",
            "client-priority": str(limits.priority),
            "pipe-directory": str(daemon.folder(MpsRoute(server.name, name))),
        }
        for server in servers
        for name, limits in server.namespaces.items()
        if not request.words or name in request.words
    ]


def _namespace_set(daemon: ControlDaemon, request: ModuleRequest) -> str:
    server, name = _namespace(daemon, request, request.option("server"))
    request.check_owner(server.uid)
    if _clients_of(server, name):
        raise MpsCommandError(f"Namespace '{name}' has active clients")
    set_limits(server.namespaces[name], request.options)
    return ""


def _namespace_get(daemon: ControlDaemon, request: ModuleRequest) -> str:
    server, name = _namespace(daemon, request, request.word(1, "the server"))
    whole = ModuleRequest("", "", [name], {"server": server.name}, request.uid)
    return field_of(_namespace_list(daemon, whole), request.word(2, "the field"))


COMMANDS: Final[dict[tuple[str, str], Command]] = {
    ("server", "create"): (_server_create, ("uid", "allowed-devices", "locality-domains")),
    ("server", "delete"): (_server_delete, ("force",)),
    ("server", "list"): (_server_list, ()),
    ("server", "set"): (_server_set, LIMITS),
    ("server", "get"): (_server_get, ()),
    ("namespace", "create"): (_namespace_create, ("server",)),
    ("namespace", "delete"): (_namespace_delete, ("server", "force")),
    ("namespace", "list"): (_namespace_list, ("server",)),
    ("namespace", "set"): (_namespace_set, ("server", *LIMITS)),
    ("namespace", "get"): (_namespace_get, ()),
}


# --- A command of protocol 3, and what it prints ---

Rows = list[dict[str, str]]


@dataclass(frozen=True)
class ModuleRequest:
    """A command: positional words, options, and who sent it."""

    module: str
    verb: str
    words: list[str]
    options: dict[str, str]
    uid: int

    def word(self, number: int, what: str) -> str:
        """Return a positional argument; MpsCommandError where it is missing."""
        if len(self.words) <= number:
            raise MpsCommandError(f"{self.module} {self.verb}: {what} is missing")
        return self.words[number]

    def option(self, name: str) -> str:
        """Return an option; MpsCommandError where it is missing."""
        if name not in self.options:
            raise MpsCommandError(f"{self.module} {self.verb}: --{name} is missing")
        return self.options[name]

    def check_owner(self, owner: int) -> None:
        """Refuse whoever is neither the owner of a server nor the daemon's user."""
        if self.uid not in (owner, os.geteuid()):
            command = f"{self.module} {self.verb}".upper()
            raise MpsCommandError(
                f"Insufficient privileges for UID {self.uid}. '{command}' requires server owner."
            )


def table_of(rows: Rows, form: str) -> str:
    """Return rows in the form `table` or `csv`, with `,noheader` without names; MpsCommandError."""
    kind, _, header = form.partition(",")
    if kind not in ("table", "csv") or header not in ("", "noheader") or not rows:
        if rows:
            raise MpsCommandError(f"--format={form}: not table or csv")
        return ""
    lines = [list(row.values()) for row in rows]
    if not header:
        # The names of fields, but those of namespaces are printed as words.
        words = "server-status" in rows[0]
        names = (name.replace("-", " ") if words else name for name in rows[0])
        lines.insert(0, [name.upper() for name in names])
    if kind == "csv":
        return "\n".join(map(",".join, lines))
    # A table shortens what is too long.
    return "\n".join(
        " ".join(f"{word if len(word) < 16 else f'{word[:12]}...':<16}" for word in line).rstrip()
        for line in lines
    )


def field_of(rows: Rows, name: str) -> str:
    """Return a field of the one row; MpsCommandError where there is none."""
    if not rows or name not in rows[0]:
        raise MpsCommandError(f"{name}: no such field")
    return rows[0][name]


#: The function that carries a command out, and the options that it has.
Command = tuple[Callable[[ControlDaemon, ModuleRequest], "str | Rows"], tuple[str, ...]]
