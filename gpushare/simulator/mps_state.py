# SPDX-License-Identifier: Apache-2.0
"""What a simulated MPS control daemon has, and what its commands work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpushare.simulator.mps_partitions import MpsPartitions
from gpushare.simulator.mps_server import MpsServer
from gpushare.simulator.mps_settings import MpsDevices, MpsLimits, MpsRoute


@dataclass(frozen=True)
class MpsMode:
    """How a control daemon was started."""

    protocol: int = 2
    static: bool = False
    multiuser: bool = False


@dataclass
class MpsState:
    """The servers of a control daemon, and what they are to have."""

    mode: MpsMode
    devices: MpsDevices
    partitions: MpsPartitions
    defaults: MpsLimits = field(default_factory=MpsLimits)
    servers: dict[str, MpsServer] = field(default_factory=dict)
    features: dict[str, bool] = field(
        default_factory=lambda: {"memacct": True, "context-share": True}
    )
    audit_log: bool = False

    @property
    def server(self) -> MpsServer | None:
        """The one server of protocol 2."""
        return next(iter(self.servers.values()), None)


class ControlDaemon(Protocol):
    """What commands work on."""

    state: MpsState

    def start_server(
        self,
        uid: int,
        name: str = "",
        devices: MpsDevices | None = None,
        namespaces: dict[str, MpsLimits] | None = None,
    ) -> MpsServer:
        """Start the server for a user."""

    def stop_server(self, server: MpsServer) -> None:
        """End a server."""

    def quit(self, seconds: float) -> None:
        """End when there are no clients, or after `seconds`."""

    def folder(self, route: MpsRoute | None) -> Path:
        """Return where the socket of a route is."""

    def listen(self, route: MpsRoute | None) -> None:
        """Take connections by a route; OSError."""

    def stop_listening(self, route: MpsRoute) -> None:
        """Take no more connections by a route."""
