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
control daemon keeps nothing: when it has been started again, `restore` sets the limits of all
containers again. One that has outlived gpushared is told of its containers with `add`, each with
the route that it got before, and before any new container: what nobody has named is given away.

What holds a container's limits: protocol 3 has a namespace for each, with limits that its
processes can only lower. Protocol 2 has one server for all: its limits are those of the container
with the largest ones, and the smaller limits of the others are in the variables of `ClientRoute`,
which a process can raise again up to the server's.
"""

from __future__ import annotations

from typing import Protocol

from gpushare.daemon.mps.model import (
    ClientRoute,
    MpsProcess,
    MpsServerState,
    SmPartitions,
    TenantLimits,
)
from gpushare.daemon.mps.program import ControlProgram
from gpushare.daemon.mps.protocol2 import Protocol2
from gpushare.daemon.mps.protocol3 import Protocol3


class MpsControl(Protocol):
    """The control daemon of one card."""

    program: ControlProgram

    def is_ready(self) -> bool:
        """Whether it answers commands."""

    def add(
        self, name: str, limits: TenantLimits, uid: int, before: ClientRoute | None = None
    ) -> ClientRoute:
        """Set a container's limits, and return how its processes reach them.

        `uid` is the host's user of the container's processes. Repeating it is no error. Without
        multiuser, protocol 2 refuses a second user as long as it has containers of the first.
        A static partition is refused where the card has clients or lacks chunks; in protocol 3, the
        container can be added without one. `before`: the route from an earlier gpushared.
        """

    def change(self, name: str, limits: TenantLimits) -> ClientRoute:
        """Set other limits of a container; return its route, whose `env` may be another.

        Only processes that start afterwards get them. Protocol 3 refuses while the container has
        clients, and the limits then stay as they were. KeyError for an unknown name.
        """

    def remove(self, name: str) -> None:
        """Forget a container, and what was created for it. An unknown name is no error.

        Protocol 3 refuses while it has clients; `terminate` them first, and repeat it.
        """

    def restore(self) -> dict[str, ClientRoute]:
        """Set everything again, in a control daemon that was started again; return the routes.

        pipe_folder is the same, as a path; a static partition has another ID.
        """

    def partitions(self) -> SmPartitions:
        """Return how the card is divided into static partitions."""

    def servers(self) -> tuple[MpsServerState, ...]:
        """Return the servers. Protocol 2 has none before the first client."""

    def clients(self) -> tuple[MpsProcess, ...]:
        """Return the clients of all servers."""

    def terminate(self, client: MpsProcess) -> None:
        """End a client's work on the card, before it is killed.

        A client that is killed with work in flight can leave the server and the other clients in an
        undefined state ("When to Use MPS").
        """

    def quit(self, seconds: float) -> None:
        """End the control daemon and its servers. Protocol 2 gives clients so many seconds."""


def control_of(program: ControlProgram) -> MpsControl:
    """Return the client of a control daemon, by its protocol."""
    return Protocol3(program) if program.protocol == 3 else Protocol2(program)
