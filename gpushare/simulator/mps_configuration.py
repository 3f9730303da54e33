# SPDX-License-Identifier: Apache-2.0
"""The configuration file of protocol 3, which the control daemon applies once, when it starts.

A key that is not in the manual is an error. ("MPS v3 Configuration File")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpushare.simulator.mps_modules import set_feature
from gpushare.simulator.mps_namespaces import (
    check_name,
    create_namespace,
    create_server,
    set_limits,
)
from gpushare.simulator.mps_server import DEFAULT
from gpushare.simulator.mps_settings import MpsCommandError
from gpushare.simulator.mps_state import ControlDaemon

_SCHEMA: Final = "1.0"
_LIMITS: Final = ("pinned_memory_limit", "active_thread_percentage", "client_priority")
_SERVER: Final = (*_LIMITS, "allowed_devices", "uid", "locality_domains", "namespaces", "devices")


def apply_configuration(daemon: ControlDaemon, document: Mapping[str, Any]) -> None:
    """Create what a file lists; MpsCommandError for an unknown key, OSError."""
    _check(document, ("schema_version", "servers", "features"), "")
    if document.get("schema_version") != _SCHEMA:
        raise MpsCommandError(f"schema_version: not {_SCHEMA}")
    for name, table in document.get("servers", {}).items():
        _apply_server(daemon, name, table)
    for name, table in document.get("features", {}).items():
        _check(table, ("enabled", "audit_log", "default_socket"), f"features.{name}")
        set_feature(daemon, name, enabled=bool(table.get("enabled", True)))
        daemon.state.audit_log |= bool(table.get("audit_log", False))


def _apply_server(daemon: ControlDaemon, name: str, table: Mapping[str, Any]) -> None:
    where = f"servers.{name}"
    _check(table, _SERVER, where)
    if table.get("locality_domains", False):
        raise MpsCommandError(f"{where}.locality_domains: not supported by this device")
    server = create_server(daemon, name, int(table.get("uid", 0)), table.get("allowed_devices"))
    _set(server.limits, table)
    for namespace, limits in table.get("namespaces", {}).items():
        _check(limits, _LIMITS, f"{where}.namespaces.{namespace}")
        named = namespace == DEFAULT
        _set(server.limits if named else create_namespace(daemon, server, namespace), limits)
    for device in table.get("devices", ()):
        _check(device, ("uuid", "sm_partitions"), f"{where}.devices")
        card = daemon.state.devices.abbreviated(device["uuid"])
        for partition in device.get("sm_partitions", ()):
            _check(partition, ("name", "chunks", "include_remainder"), f"{where}.sm_partitions")
            daemon.state.partitions.add(
                card,
                int(partition["chunks"]),
                check_name(partition["name"]),
                name,
                remainder=bool(partition.get("include_remainder", False)),
            )


def _set(limits: Any, table: Mapping[str, Any]) -> None:
    values = {key.replace("_", "-"): str(table[key]) for key in _LIMITS if key in table}
    if values:
        set_limits(limits, values)


def _check(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = set(table) - set(known)
    if unknown:
        raise MpsCommandError(f"{f'{where}.' if where else ''}{min(unknown)}: unknown key")
