# SPDX-License-Identifier: Apache-2.0
"""`nvidia-cuda-mps-control` of the simulated driver: it is the control daemon, or commands one."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TextIO

from gpushare.simulator.mps_control import PRIVILEGED, MpsControlDaemon
from gpushare.simulator.mps_modules import set_feature
from gpushare.simulator.mps_namespaces import (
    check_name,
    create_namespace,
    create_server,
    set_limits,
)
from gpushare.simulator.mps_settings import MpsCommandError, MpsDevices
from gpushare.simulator.mps_state import DEFAULT, PIPE_ENV, ControlDaemon, MpsMode

LOG_ENV: Final = "CUDA_MPS_LOG_DIRECTORY"
_PROTOCOL_ENV: Final = "CUDA_MPS_PROTOCOL_VERSION"
_PIPE_DEFAULT: Final = "/tmp/nvidia-mps"  # noqa: S108 - the manual's, "CUDA_MPS_PIPE_DIRECTORY"
_PIPE_ROOT: Final = "/run/nvidia-mps"  # of protocol 3
_LOG_DEFAULT: Final = "/var/log/nvidia-mps"
_PROTOCOL3_DRIVER: Final = 615
_STATIC_CUDA: Final = 13010
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Options:
    """The command line."""

    daemon: str = ""  # -d, -f
    mode: MpsMode = field(default_factory=MpsMode)
    configuration: Path | None = None
    quits: bool = False
    command: tuple[str, ...] = ()


def parse(arguments: list[str], devices: MpsDevices) -> Options:
    """Return the options that the driver's version has; MpsCommandError for others."""
    read, words = Options(), iter(arguments)
    new = devices.driver_major >= _PROTOCOL3_DRIVER
    for word in words:
        if word in ("-d", "--daemon", "-f", "--foreground"):
            read = replace(read, daemon=word.lstrip("-")[0])
        elif word in ("-multiuser-server", "-M", "--multiuser") or (new and word == "-m"):
            read = replace(read, mode=replace(read.mode, multiuser=True))
        elif word in ("-S", "--static-partitioning") and devices.cuda_version >= _STATIC_CUDA:
            read = replace(read, mode=replace(read.mode, static=True))
        elif new and word in ("-p", "--protocol"):
            read = replace(read, mode=replace(read.mode, protocol=_protocol(next(words, ""))))
        elif new and word in ("-a", "--apply"):
            read = replace(read, configuration=Path(next(words, "")))
        elif new and word in ("-q", "--quit"):
            read = replace(read, quits=True)
        elif new and not word.startswith("-"):
            return replace(read, command=(word, *words))
        else:
            raise MpsCommandError(f"{word}: unknown option")
    named = os.environ.get(_PROTOCOL_ENV) if new else None
    if named is not None:
        read = replace(read, mode=replace(read.mode, protocol=_protocol(named)))
    if read.mode.static and read.mode.protocol == 3:
        raise MpsCommandError("-S: of protocol 2; protocol 3 has the module sm-partition")
    return read


def _protocol(word: str) -> int:
    if word not in ("2", "3"):
        raise MpsCommandError(f"{word}: not a protocol")
    return int(word)


def send(pipes: Path, messages: Iterator[str], printed: TextIO, failed: TextIO) -> int:
    """Send commands to the running daemon and print the replies; return the exit status."""
    privileged = pipes / PRIVILEGED
    path = privileged if privileged.exists() else pipes / "control"
    for message in messages:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(str(path))
                connection.send(message.encode())
                answer = connection.recv(_MOST_BYTES).decode()
        except OSError:
            failed.write("Cannot find MPS control daemon process\n")
            return 1
        status, _, text = answer.partition("\n")
        if text:
            (failed if status != "0" else printed).write(f"{text}\n")
        if status != "0":
            return 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run `nvidia-cuda-mps-control`: the daemon with -d or -f, else commands to it."""
    try:
        devices = MpsDevices.visible()
        options = parse(sys.argv[1:] if arguments is None else arguments, devices)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    root = options.mode.protocol == 3 and os.geteuid() == 0
    pipes = Path(os.environ.get(PIPE_ENV, _PIPE_ROOT if root else _PIPE_DEFAULT))
    if not options.daemon:
        messages = (f"command\n{line}" for line in sys.stdin)
        if options.quits:
            messages = (message for message in ("arguments\n-q",))
        elif options.command:
            messages = (message for message in ("arguments\n" + "\0".join(options.command),))
        return send(pipes, messages, sys.stdout, sys.stderr)
    logs = Path(os.environ.get(LOG_ENV, _LOG_DEFAULT))
    try:
        control = MpsControlDaemon(pipes, logs, options.mode, devices)
        if options.configuration is not None and options.mode.protocol == 3:
            _apply(control, options.configuration)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if options.daemon == "d" and os.fork() > 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    control.run()
    return 0


def _apply(control: MpsControlDaemon, path: Path) -> None:
    import tomlkit  # noqa: PLC0415 - commands need none of it

    text = path.read_text(encoding="utf-8")
    apply_configuration(control, tomlkit.parse(text).unwrap())


# --- the configuration file of protocol 3, which the control daemon applies once, when it starts
# ---
#
# A key that is not in the manual is an error. ("MPS v3 Configuration File")

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


if __name__ == "__main__":
    sys.exit(main())
