# SPDX-License-Identifier: Apache-2.0
"""The commands of protocol 3 that the simulated MPS control daemon carries out: MODULE VERB.

Whoever reaches a socket may read; changes are for the server's owner and the daemon's user.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from gpushare.simulator import mps_namespaces
from gpushare.simulator.mps_commands import CLIENT_TERMINATED
from gpushare.simulator.mps_namespaces import (
    Command,
    ModuleRequest,
    Rows,
    check_name,
    field_of,
    server_of,
    table_of,
)
from gpushare.simulator.mps_settings import MpsCommandError, MpsDevice
from gpushare.simulator.mps_state import ControlDaemon, MpsServer, tell


def run_command(daemon: ControlDaemon, arguments: list[str], uid: int) -> tuple[int, str]:
    """Return the exit status of a command and what it prints."""
    if arguments == ["-q"]:
        if uid != os.geteuid():
            return 1, f"Insufficient privileges for UID {uid}."
        daemon.quit(0)
        return 0, ""
    module, verb, *rest = [*arguments, ""][: max(len(arguments), 2)]
    handler = _COMMANDS.get((module, verb))
    if handler is None:
        return 1, f"Unknown command: {module} {verb}"
    run, known = handler
    words = [word for word in rest if "=" not in word and not word.startswith("--")]
    pairs = [word.removeprefix("--").partition("=") for word in rest if word not in words]
    options = {name: value for name, _, value in pairs}
    if set(options) - {*known, *(("format",) if verb in ("list", "describe") else ())}:
        return 1, f"{module} {verb}: unknown option --{min(set(options) - set(known))}"
    try:
        answer = run(daemon, ModuleRequest(module, verb, words, options, uid))
        if isinstance(answer, str):
            return 0, answer
        return 0, table_of(answer, options.get("format", "table"))
    except (ValueError, OSError) as error:
        return 1, str(error)


# client


def _client_rows(servers: Iterable[MpsServer]) -> Rows:
    return [
        {
            "pid": str(client.pid),
            "server": server.name,
            "device": str(ordinal),
            "maws-ns": client.route.namespace,
            "cmd": client.described()[1],
        }
        for server in servers
        for client in server.clients.values()
        for ordinal, _ in enumerate(server.devices.every)
    ]


def _client_list(daemon: ControlDaemon, request: ModuleRequest) -> Rows:
    named = request.options.get("server")
    if named is not None:
        return _client_rows([server_of(daemon, named)])
    return _client_rows(daemon.state.servers.values())


def _found_client(daemon: ControlDaemon, request: ModuleRequest) -> MpsServer:
    pid = request.word(0, "the PID")
    for server in daemon.state.servers.values():
        if any(str(client.pid) == pid for client in server.clients.values()):
            return server
    raise MpsCommandError(f"Client {pid} not found")


def _client_get(daemon: ControlDaemon, request: ModuleRequest) -> str:
    server = _found_client(daemon, request)
    rows = [row for row in _client_rows([server]) if row["pid"] == request.words[0]]
    client = next(one for one in server.clients.values() if str(one.pid) == request.words[0])
    rows[0] |= {"linux-ns": client.described()[0], "pci-id": server.devices.every[0].pci}
    return field_of(rows, request.word(1, "the field"))


def _client_terminate(daemon: ControlDaemon, request: ModuleRequest) -> str:
    server = _found_client(daemon, request)
    request.check_owner(server.uid)
    for connection, client in server.clients.items():
        if str(client.pid) == request.words[0]:
            tell(connection, str(CLIENT_TERMINATED))
    return ""


# device, sm-partition


def _device_list(daemon: ControlDaemon, request: ModuleRequest) -> Rows:
    named = request.options.get("server")
    server = server_of(daemon, named) if named is not None else None
    devices = server.devices if server else daemon.state.devices
    return [
        {
            "Ordinal": str(ordinal),
            "Server": server.name if server else "-",
            "PCI ID": device.pci,
            "Device UUID": device.uuid,
            "Name": device.name,
            "Total SMs": str(device.multiprocessors),
            "Total Chunks": str(daemon.state.partitions.total(device)),
            "Attributes": "-",
        }
        for ordinal, device in enumerate(devices.every)
    ]


def _idle_device(daemon: ControlDaemon, name: str) -> MpsDevice:
    device = daemon.state.devices.abbreviated(name)
    for server in daemon.state.servers.values():
        if device in server.devices.every and server.clients:
            raise MpsCommandError(f"Device {name} has active clients")
    return device


def _partition_create(daemon: ControlDaemon, request: ModuleRequest) -> str:
    server = server_of(daemon, request.option("server"))
    request.check_owner(server.uid)
    device = _idle_device(daemon, request.option("device"))
    name = check_name(request.word(0, "the name"))
    if any(other.name == name for other in daemon.state.partitions.of(device)):
        raise MpsCommandError(f"SM partition '{name}' already exists")
    partition = daemon.state.partitions.add(
        device,
        int(request.option("chunks")),
        name,
        server.name,
        remainder=request.options.get("include-remainder") == "true",
    )
    return (
        f"SM partition '{name}' created on device {device.uuid} "
        f"(sm-count={partition.multiprocessors})\nCUDA_MPS_SM_PARTITION={partition.variable}"
    )


def _partition_delete(daemon: ControlDaemon, request: ModuleRequest) -> str:
    server = server_of(daemon, request.option("server"))
    request.check_owner(server.uid)
    device = _idle_device(daemon, request.option("device"))
    name = request.word(0, "the name")
    daemon.state.partitions.remove(daemon.state.partitions.named(device, name, server.name))
    return f"SM partition '{name}' deleted from device {device.uuid}"


def _partition_list(daemon: ControlDaemon, request: ModuleRequest) -> Rows:
    named, partitions = request.options.get("server"), daemon.state.partitions
    columns = (
        "server",
        "device",
        "name",
        "chunks",
        "sm-count",
        "include-remainder",
        "status",
        "visible-uuid",
    )
    rows = [
        (
            partition.server,
            partition.device.uuid,
            partition.name,
            str(partition.chunks),
            str(partition.multiprocessors),
            str(partition.remainder).lower(),
            "created",
            partition.id,
        )
        for partition in partitions.listed(daemon.state.devices.every)
        if named is None or partition.server == named
    ]
    for device in daemon.state.devices.every:
        chunks, multiprocessors = partitions.free(device)
        if multiprocessors:
            free = (str(chunks), str(multiprocessors), "-", "unallocated", "-")
            rows.append((named or "-", device.uuid, "-", *free))
    return [dict(zip(columns, row, strict=True)) for row in rows]


# feature, memacct


def _feature(daemon: ControlDaemon, request: ModuleRequest) -> str:
    request.check_owner(os.geteuid())
    set_feature(daemon, request.word(0, "the feature"), enabled=request.verb == "enable")
    return ""


def set_feature(daemon: ControlDaemon, name: str, *, enabled: bool) -> None:
    """Enable or disable a feature; MpsCommandError for one that does not exist."""
    if name not in daemon.state.features:
        raise MpsCommandError(f"{name}: no such feature")
    daemon.state.features[name] = enabled


def _feature_describe(daemon: ControlDaemon, request: ModuleRequest) -> Rows:
    return [
        {
            "feature": name,
            "state": "enabled (default)" if enabled else "disabled",
            "module": name,
            "covers": "-",
        }
        for name, enabled in daemon.state.features.items()
        if not request.words or name in request.words
    ]


def _memacct_set(daemon: ControlDaemon, request: ModuleRequest) -> str:
    request.check_owner(os.geteuid())
    value = request.option("audit_log")
    if value not in ("true", "false"):
        raise MpsCommandError(f"audit_log={value}: not true or false")
    daemon.state.audit_log = value == "true"
    return ""


def _memacct_describe(daemon: ControlDaemon, _: ModuleRequest) -> Rows:
    return [{"key": "audit_log", "value": str(daemon.state.audit_log).lower()}]


_COMMANDS: Final[dict[tuple[str, str], Command]] = {
    **mps_namespaces.COMMANDS,
    ("client", "list"): (_client_list, ("server", "all")),
    ("client", "get"): (_client_get, ()),
    ("client", "terminate"): (_client_terminate, ()),
    ("device", "list"): (_device_list, ("server",)),
    ("sm-partition", "create"): (
        _partition_create,
        ("server", "device", "chunks", "include-remainder"),
    ),
    ("sm-partition", "delete"): (_partition_delete, ("server", "device")),
    ("sm-partition", "list"): (_partition_list, ("server", "device", "all")),
    ("feature", "enable"): (_feature, ()),
    ("feature", "disable"): (_feature, ()),
    ("feature", "describe"): (_feature_describe, ()),
    ("memacct", "set"): (_memacct_set, ("audit_log",)),
    ("memacct", "describe"): (_memacct_describe, ()),
}
