# SPDX-License-Identifier: Apache-2.0
"""Protocol 3: a namespace for each container, with limits of its own.

A server's limits bind its `default` namespace only, and a namespace without limits has the whole
card: each gets all three limits before a route to it is returned, and `default`, which no container
uses, the smallest. Limits are read back from the list of namespaces. They cannot be changed while
the namespace has clients (measured by others, driver 615). Sources: "MPS v3 Interface", "MPS v3
Namespaces".
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import re
import time
from dataclasses import replace
from typing import Final

from gpushare.daemon.mps.partitions import PARTITION_ENV, PartitionCommands, PartitionPool
from gpushare.daemon.mps.program import (
    COMMAND_SECONDS,
    MIB,
    TERMINATE_SECONDS,
    ClientRoute,
    ControlProgram,
    MpsError,
    MpsProcess,
    MpsServerState,
    RoutedTenant,
    SmPartition,
    SmPartitions,
    TenantLimits,
    size_in_bytes,
)

_SERVER: Final = "gpushare"
_DEVICE: Final = "0"  # the daemon has one card
_LIST: Final = "--format=csv"
_WAIT_SECONDS: Final = 0.05


def namespace_of(name: str) -> str:
    """Return the namespace of a container: short, and of the letters that are allowed."""
    return f"t_{hashlib.sha256(name.encode()).hexdigest()[:12]}"


class Protocol3:
    """A control daemon that speaks protocol 3."""

    def __init__(self, program: ControlProgram) -> None:
        self.program = program
        self._tenants: dict[str, RoutedTenant] = {}
        self._pools: dict[str, PartitionPool] = {}
        self._checked: set[str] = set()  # servers that have been seen running

    def is_ready(self) -> bool:
        """Whether it answers commands."""
        try:
            self._list("server")
        except MpsError:
            return False
        return True

    def add(
        self, name: str, limits: TenantLimits, uid: int, before: ClientRoute | None = None
    ) -> ClientRoute:
        """Create a container's namespace with its limits."""
        if name in self._tenants:
            return self.change(name, limits)
        server = self._server_of(uid)
        namespace = namespace_of(name)
        self.program.check_path(self.program.pipe_folder / server / namespace)
        self._ensure_server(server, uid)
        partition = self._pool(server).take(limits.chunks, before) if limits.chunks else ""
        try:
            found = self._namespace(server, namespace)
            if found is None:
                self._run("namespace", "create", namespace, f"--server={server}")
            self._limit(server, namespace, limits, found)
        except MpsError:
            with contextlib.suppress(MpsError):
                # Without limits, it has the whole card.
                self._delete_namespace(server, namespace)
            if partition:
                self._pool(server).give_up(partition)
            raise
        self._tenants[name] = RoutedTenant(limits, uid, partition)
        return self._route(name)

    def change(self, name: str, limits: TenantLimits) -> ClientRoute:
        """Set other limits; on MpsError, they are what they were."""
        known = self._tenants[name]
        if known.limits == limits:
            return self._route(name)
        server = self._server_of(known.uid)
        partition = known.partition
        if limits.chunks != known.limits.chunks:
            partition = self._pool(server).take(limits.chunks) if limits.chunks else ""
        try:
            self._limit(server, namespace_of(name), limits, None)
        except MpsError:
            if partition != known.partition and partition:
                self._pool(server).give_up(partition)
            raise
        self._tenants[name] = replace(known, limits=limits, partition=partition)
        if partition != known.partition and known.partition:
            self._pool(server).give_up(known.partition)
        return self._route(name)

    def remove(self, name: str) -> None:
        """Delete a container's namespace; MpsError while it has clients."""
        known = self._tenants.get(name)
        if known is None:
            return
        server, namespace = self._server_of(known.uid), namespace_of(name)
        self._delete_namespace(server, namespace)
        if self._namespace(server, namespace) is not None:
            raise MpsError(f"namespace delete {namespace}: it is still there")
        if known.partition:
            self._pool(server).give_up(known.partition)
        del self._tenants[name]

    # Servers: one for all users, or one for each.

    def _server_of(self, uid: int) -> str:
        return _SERVER if self.program.multiuser else f"{_SERVER}_{uid}"

    def _ensure_server(self, server: str, uid: int) -> None:
        """Create a server that is not there, and wait until it takes clients."""
        if server in self._checked:
            return
        if all(found.name != server for found in self.servers()):
            owner = 0 if self.program.multiuser else uid
            self._run("server", "create", server, f"--uid={owner}")
        until = time.monotonic() + COMMAND_SECONDS
        while not any(one.name == server and one.takes_clients for one in self.servers()):
            if time.monotonic() > until:
                raise MpsError(f"server create {server}: it does not run; {self.servers()}")
            time.sleep(_WAIT_SECONDS)
        lowest = TenantLimits(MIB, 1, priority=1)
        if self._namespace(server, "default") not in (None, lowest):
            self._run("server", "set", server, *_options(lowest))
            found = self._namespace(server, "default")
            if found is None or replace(found, priority=lowest.priority) != lowest:
                raise MpsError(f"server set {server}: has no effect: {found}")
        self._checked.add(server)

    # Namespaces.

    def _namespace(self, server: str, namespace: str) -> TenantLimits | None:
        """Return the limits of a namespace, None where there is none; without limits: the most."""
        for row in self._list("namespace", f"--server={server}"):
            if row.get("name") == namespace and row.get("server") == server:
                return _limits(row)
        return None

    def _limit(
        self, server: str, namespace: str, limits: TenantLimits, known: TenantLimits | None
    ) -> None:
        """Set all limits of a namespace where `known` are others, and read them back."""
        wanted = TenantLimits(limits.memory_mib * MIB, limits.cores_percent, limits.priority)
        if known == wanted:
            return
        options = _options(wanted)
        text = self._run("namespace", "set", namespace, f"--server={server}", *options)
        found = self._namespace(server, namespace)
        # The priority, a hint, is not in every driver's list.
        if found is None or replace(found, priority=wanted.priority) != wanted:
            raise MpsError(f"namespace set {namespace} {' '.join(options)}: {text}; it has {found}")

    def _delete_namespace(self, server: str, namespace: str) -> None:
        if self._namespace(server, namespace) is not None:
            self._run("namespace", "delete", namespace, f"--server={server}")

    def _route(self, name: str) -> ClientRoute:
        tenant = self._tenants[name]
        folder = self.program.pipe_folder / self._server_of(tenant.uid) / namespace_of(name)
        if not (folder / "control").exists():
            raise MpsError(f"{folder}/control: the namespace has no socket")
        if not tenant.partition:
            return ClientRoute(folder, {})
        return ClientRoute(folder, {PARTITION_ENV: f"{self.program.uuid}/{tenant.partition}"})

    # Static partitions.

    def partitions(self) -> SmPartitions:
        """Return what the lists of devices and partitions have."""
        device = next(
            (
                row
                for row in self._list("device")
                if row.get("device-uuid", "").startswith(self.program.uuid)
            ),
            None,
        )
        if device is None:
            raise MpsError(f"device list does not have {self.program.uuid}")
        chunks = _integer(device, "total-chunks")
        multiprocessors = _integer(device, "total-sms")
        found = self._partitions_of()
        return SmPartitions(
            chunks - sum(partition.chunks for partition in found),
            multiprocessors - sum(partition.multiprocessors for partition in found),
            chunks,
            multiprocessors,
            found,
        )

    def _partitions_of(self, server: str = "") -> tuple[SmPartition, ...]:
        scope = [f"--server={server}"] if server else ["--all"]
        return tuple(
            SmPartition(
                row.get("name", ""),
                row.get("visible-uuid", "").removeprefix(f"{self.program.uuid}/"),
                _integer(row, "chunks"),
                _integer(row, "sm-count"),
                in_use=None,
            )
            for row in self._list("sm-partition", *scope)
            if row.get("status") == "created"
        )

    def _pool(self, server: str) -> PartitionPool:
        def create(chunks: int) -> str:
            used = {partition.name for partition in self._partitions_of(server)}
            name = next(name for number in range(1 << 16) if (name := f"p{number}") not in used)
            where = (f"--server={server}", f"--device={_DEVICE}", f"--chunks={chunks}")
            text = self._run("sm-partition", "create", name, *where)
            found = re.search(rf"{PARTITION_ENV}=[^/\s]+/(\S+)", text)
            if found is None:
                raise MpsError(f"sm-partition create {name} {' '.join(where)}: {text}")
            return found[1]

        def delete(partition: SmPartition) -> None:
            where = (f"--server={server}", f"--device={_DEVICE}")
            self._run("sm-partition", "delete", partition.name, *where)

        commands = PartitionCommands(lambda: self._partitions_of(server), create, delete)
        return self._pools.setdefault(server, PartitionPool(commands))

    # What runs.

    def servers(self) -> tuple[MpsServerState, ...]:
        """Return the servers."""
        return tuple(
            MpsServerState(row.get("name", ""), _pid(row.get("pid", "")), row.get("status", ""))
            for row in self._list("server")
        )

    def clients(self) -> tuple[MpsProcess, ...]:
        """Return the clients of all servers, a process once."""
        pids = {server.name: server.pid for server in self.servers()}
        tenants = {namespace_of(name): name for name in self._tenants}
        found = {}
        for row in self._list("client", "--all"):
            pid = _integer(row, "pid")
            namespace = row.get("maws-ns", row.get("namespace", ""))
            server = pids.get(row.get("server", ""), 0)
            command = row.get("cmd", row.get("command", ""))
            found[pid] = MpsProcess(pid, server, tenants.get(namespace), command)
        return tuple(found.values())

    def terminate(self, client: MpsProcess) -> None:
        """End a client's work; one that has ended already is no error."""
        try:
            self._run("client", "terminate", str(client.pid), seconds=TERMINATE_SECONDS)
        except MpsError:
            if any(other.pid == client.pid for other in self.clients()):
                raise

    def quit(self, seconds: float) -> None:  # noqa: ARG002 - the protocol has no time for it
        """End the control daemon and all servers at once."""
        self._run("-q")

    def _run(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> str:
        return self.program.run(*arguments, seconds=seconds)

    def _list(self, module: str, *options: str) -> list[dict[str, str]]:
        """Return the rows of a list, by the names of the columns in lower case with hyphens.

        As CSV: a table shortens PIDs. A command line with commas is the last column.
        """
        text = self._run(module, "list", *options, _LIST)
        rows = list(csv.reader(io.StringIO(text)))
        if not rows:
            return []
        names = [name.strip().lower().replace(" ", "-") for name in rows[0]]
        if len(names) < 2:
            raise MpsError(f"{module} list: {text}")
        last = len(names) - 1
        return [
            dict(zip(names, [*(w.strip() for w in row[:last]), ",".join(row[last:])], strict=False))
            for row in rows[1:]
            if row
        ]


def _options(limits: TenantLimits) -> tuple[str, ...]:
    return (
        f"--pinned-memory-limit={limits.memory_mib}M",
        f"--active-thread-percentage={limits.cores_percent}",
        f"--client-priority={limits.priority}",
    )


def _limits(row: dict[str, str]) -> TenantLimits:
    """Return the limits of a listed namespace; one that it lacks is the most there can be."""
    memory = row.get("pinned-memory-limit", "")
    cores = row.get("active-thread-percentage", "").rstrip("%")
    priority = row.get("client-priority", "")[:1]
    try:
        return TenantLimits(
            size_in_bytes(memory) if memory[:1].isdecimal() else 1 << 62,
            round(float(cores)) if cores[:1].isdecimal() else 100,
            int(priority) if priority.isdecimal() else 0,
        )
    except ValueError as error:
        raise MpsError(f"namespace list: {row}") from error


def _integer(row: dict[str, str], column: str) -> int:
    try:
        return int(row[column])
    except (KeyError, ValueError) as error:
        raise MpsError(f"{column}: not a number in {row}") from error


def _pid(text: str) -> int:
    return int(text) if text.isdecimal() else 0
