# SPDX-License-Identifier: Apache-2.0
"""Commands to the control daemon of one card, alike in both protocols.

    program = ControlProgram(path, pipe_folder, log_folder, uuid, protocol_of(version))
    # start program.arguments() with program.environment(), and watch it
    control = control_of(program)
    while not control.is_ready(): ...
    route = control.add(key, TenantLimits(memory_bytes, cores_percent), uid)
    # mount route.pipe_folder; CUDA_MPS_PIPE_DIRECTORY=<where it is mounted>, and route.env

Every method blocks until its command has ended, at most COMMAND_SECONDS each (`terminate`:
TERMINATE_SECONDS), and raises MpsError; call them from one thread, which nothing waits for. A
control daemon keeps nothing: one that has been started again is told of its containers with `add`,
and so is one that has outlived gpushared, each with the route that it got before, and before any
new container: what nobody has named is given away.

What holds a container's limits: protocol 3 has a namespace for each, with limits that its
processes can only lower. Protocol 2 has one server for all: its limits are those of the container
with the largest ones, and the smaller limits of the others are in the variables of `ClientRoute`,
which a process can raise again up to the server's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

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
from gpushare.daemon.mps.protocol3 import Protocol3

#: `add` and `change` return how the processes of a container reach the server, with its limits;
#: `uid` is their user on the host, and `before` the route from an earlier gpushared. To add one
#: again is no error, nor to remove an unknown one. Only processes that start afterwards get changed
#: limits. In protocol 3, `change` and `remove` are refused while the container has clients, whose
#: work `terminate` ends: a client that is killed with work in flight can leave the server and the
#: other clients in an undefined state ("When to Use MPS").
MpsControl: TypeAlias = "Protocol2 | Protocol3"


def control_of(program: ControlProgram) -> MpsControl:
    """Return the client of a control daemon, by its protocol."""
    return Protocol3(program) if program.protocol == 3 else Protocol2(program)


_DEVICE: Final = "0"  # the daemon has one card
#: The socket for commands, which others have seen beside `control`; the manual does not name it.
_HIDDEN: Final = ("control_privileged",)


class Protocol2:
    """A control daemon with one server for all containers, commanded on its standard input.

    A command that fails prints a text and exits with 0, and a wrong device is ignored without a
    word: each setting is read back. Devices are named by their index, since limits by UUID were not
    applied (NVIDIA/k8s-device-plugin, pull request 572). Source: "Legacy MPS v2 Interface".
    """

    def __init__(self, program: ControlProgram) -> None:
        self.program = program
        self._tenants: dict[str, RoutedTenant] = {}
        self._pool = PartitionPool(
            PartitionCommands(
                lambda: self.partitions().partitions, self._add_partition, self._remove_partition
            )
        )

    def is_ready(self) -> bool:
        """Whether it answers commands."""
        try:
            _number(self._run("get_default_active_thread_percentage"))
        except MpsError:
            return False
        return True

    def add(
        self, name: str, limits: TenantLimits, uid: int, before: ClientRoute | None = None
    ) -> ClientRoute:
        """Raise the server's limits to a container's, where they are lower."""
        self.program.check_path(self.program.pipe_folder)
        self._check_user(name, uid)
        known = self._tenants.get(name)
        if known is not None:
            return self.change(name, limits)
        self._check_mode(limits)
        partition = self._pool.take(limits.chunks, before) if limits.chunks else ""
        self._tenants[name] = RoutedTenant(limits, uid, partition)
        try:
            self._apply()
        except MpsError:
            del self._tenants[name]
            if partition:
                self._pool.give_up(partition)
            raise
        return self._route(name)

    def change(self, name: str, limits: TenantLimits) -> ClientRoute:
        """Set other limits; on MpsError, they are what they were."""
        known = self._tenants[name]
        if known.limits == limits:
            return self._route(name)
        self._check_mode(limits)
        partition = known.partition
        if limits.chunks and limits.chunks != known.limits.chunks:
            partition = self._pool.take(limits.chunks)
        self._tenants[name] = replace(known, limits=limits, partition=partition)
        try:
            self._apply()
        except MpsError:
            self._tenants[name] = known
            if partition != known.partition:
                self._pool.give_up(partition)
            raise
        if partition != known.partition:
            self._pool.give_up(known.partition)
        return self._route(name)

    def remove(self, name: str) -> None:
        """Lower the server's limits to those of the others."""
        known = self._tenants.pop(name, None)
        if known is None:
            return
        if known.partition:
            self._pool.give_up(known.partition)
        self._apply()

    def _check_user(self, name: str, uid: int) -> None:
        users = {tenant.uid for other, tenant in self._tenants.items() if other != name}
        if not self.program.multiuser and users - {uid}:
            raise MpsError(
                f"user {uid}: the MPS server of {self.program.uuid} serves user {min(users)} until "
                "its containers have ended. Use one user, or the multi-user server."
            )

    def _check_mode(self, limits: TenantLimits) -> None:
        if self.program.static and not limits.chunks:
            raise MpsError("a control daemon with static partitions serves no client without one")
        if limits.chunks and not self.program.static:
            raise MpsError("the control daemon was started without static partitions")

    def _route(self, name: str) -> ClientRoute:
        tenant = self._tenants[name]
        limits = tenant.limits
        env = {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{_DEVICE}={limits.memory_mib}M",
            "CUDA_MPS_CLIENT_PRIORITY": str(limits.priority),
        }
        if tenant.partition:
            env[PARTITION_ENV] = f"{self.program.uuid}/{tenant.partition}"
        else:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(limits.cores_percent)
        return ClientRoute(self.program.pipe_folder, env, _HIDDEN)

    # Limits: of the next server, and of those that run.

    def _apply(self) -> None:
        """Make the limits those of the largest container; MpsError where they are not.

        The priority is each client's own: it is a hint, and older drivers have no default for it.
        """
        every = [tenant.limits for tenant in self._tenants.values()]
        if not every:
            return  # nobody has the folder
        cores = max(limits.cores_percent for limits in every)
        memory = max(limits.memory_mib for limits in every)
        self._set("default_active_thread_percentage", cores, _number, cores)
        self._set(
            f"default_device_pinned_mem_limit {_DEVICE}", f"{memory}M", size_in_bytes, memory * MIB
        )
        for pid in self._server_pids():
            try:
                self._set(f"active_thread_percentage {pid}", cores, _number, cores)
                self._set(
                    f"device_pinned_mem_limit {pid} {_DEVICE}",
                    f"{memory}M",
                    size_in_bytes,
                    memory * MIB,
                )
            except MpsError:
                if pid in self._server_pids():
                    raise  # it has not ended meanwhile

    def _set(
        self, setting: str, value: object, read: Callable[[str], float], expected: float
    ) -> None:
        """Set it, and compare what is then read."""
        text = self._run(f"set_{setting} {value}\nget_{setting}")
        try:
            value_read = read(text.splitlines()[-1] if text else "")
        except MpsError as error:
            raise MpsError(f"set_{setting} {value}: {text}") from error
        if value_read != expected:
            raise MpsError(f"set_{setting} {value}: has no effect: {text}")

    # Static partitions.

    def partitions(self) -> SmPartitions:
        """Return what `lspart` lists."""
        text = self._run("lspart")
        device: tuple[int, ...] = ()
        partitions = []
        for line in text.splitlines():
            first, *rest = line.split() or [""]
            if not first or not self.program.uuid.startswith(first):
                continue  # the head of the table
            words = [word for word in rest if word not in ("-", "Yes", "No")]
            try:
                if len(words) == 4:
                    device = tuple(map(int, words))
                elif len(words) == 3:
                    sizes = (int(words[1]), int(words[2]))
                    partitions.append(SmPartition("", words[0], *sizes, in_use="Yes" in rest))
            except ValueError as error:
                raise MpsError(f"lspart: {line}") from error
        if not device:
            raise MpsError(f"lspart does not list {self.program.uuid}: {text}")
        free_chunks, used_chunks, free_multiprocessors, _ = device
        used = sum(partition.multiprocessors for partition in partitions)
        return SmPartitions(
            free_chunks,
            free_multiprocessors,
            free_chunks + used_chunks,
            free_multiprocessors + used,
            tuple(partitions),
        )

    def _add_partition(self, chunks: int) -> str:
        command = f"sm_partition add {self.program.uuid} {chunks}"
        text = self._run(command)
        # The manual shows the ID alone, drivers print "Partition ID created".
        created = re.search(rf"{re.escape(self.program.uuid)}/(\S+)", text)
        if created is None:
            raise MpsError(f"{command}: {text}")
        return created[1]

    def _remove_partition(self, partition: SmPartition) -> None:
        command = f"sm_partition rm {self.program.uuid} {partition.id}"
        text = self._run(command)
        if any(other.id == partition.id for other in self.partitions().partitions):
            raise MpsError(f"{command}: {text}")

    # Servers and clients.

    def servers(self) -> tuple[MpsServerState, ...]:
        """Return the servers, which are one, or none."""
        return tuple(
            MpsServerState(str(pid), pid, self._run(f"get_server_status {pid}"))
            for pid in self._server_pids()
        )

    def _server_pids(self) -> list[int]:
        text = self._run("get_server_list")
        try:
            return [int(word) for word in text.split()]
        except ValueError as error:
            raise MpsError(f"get_server_list: {text}") from error

    def clients(self) -> tuple[MpsProcess, ...]:
        """Return what `ps` lists, a process once."""
        clients = {}
        for line in self._run("ps").splitlines():
            pid, _, server, *rest = [*line.split(maxsplit=5), "", "", ""]
            if pid == "PID" or not line.strip():
                continue
            if not pid.isdecimal() or not server.isdecimal():
                raise MpsError(f"ps: {line}")
            clients[int(pid)] = MpsProcess(int(pid), int(server), None, rest[2])
        return tuple(clients.values())

    def terminate(self, client: MpsProcess) -> None:
        """End a client's work; one that has ended already is no error."""
        command = f"terminate_client {client.server_pid} {client.pid}"
        text = self._run(command, TERMINATE_SECONDS)
        if text not in ("", "0") and any(other.pid == client.pid for other in self.clients()):
            raise MpsError(f"{command}: {text}")

    def quit(self, seconds: float) -> None:
        """End the control daemon; servers end after so many seconds."""
        self._run(f"quit -t {max(0, round(seconds))}")

    def _run(self, commands: str, seconds: float = COMMAND_SECONDS) -> str:
        return self.program.run(commands=commands, seconds=seconds)


def _number(text: str) -> float:
    """Return the number at the beginning of a text; MpsError."""
    number = re.match(r"[0-9]+(?:\.[0-9]+)?", text)
    if number is None:
        raise MpsError(f"{text!r} is not a number")
    return float(number[0])
