# SPDX-License-Identifier: Apache-2.0
"""The section remote of gpushare.yaml: engines that an operator installed, and their servers.

An engine has client libraries that take the place of NVIDIA's in a container and forward its calls
to a server. gpushare contains no engine, and knows nothing of one but this section.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpushare.quota.errors import QuotaError, quoted
from gpushare.text_position import KeyPath

#: What stands in an engine's variables for the server's address, and for an ID of the container.
PLACES: Final = ("server", "session")
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
CROSS_NODE: Final = "ORION_CROSS_NODE"


@dataclass(frozen=True)
class RemoteEngine:
    """An engine: the folder of its client libraries, and the variables that they need.

    `version` is the beginning of the SHA-256 of its libcuda.so.1.
    """

    libraries: Path
    version: str
    environment: Mapping[str, str]

    def variables(self, server: str, session: str) -> dict[str, str]:
        """Return the variables of a container that uses the server at this address."""
        values = {"server": server, "session": session}
        return {
            name: _PLACE.sub(lambda found: values[found[1]], text)
            for name, text in self.environment.items()
        }


@dataclass(frozen=True)
class RemoteServer:
    """A server: its address, as the engine reads it, and the name of the engine."""

    address: str
    engine: str

    @property
    def is_local(self) -> bool:
        """Whether the address is one of the loopback interface."""
        host = self.address.rpartition(":")[0].strip("[]")
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


@dataclass(frozen=True)
class RemoteGpus:
    """The engines and servers of the section, by name."""

    engines: Mapping[str, RemoteEngine] = field(default_factory=dict)
    servers: Mapping[str, RemoteServer] = field(default_factory=dict)

    def server(self, name: str, source: str) -> RemoteServer:
        """Return a server; QuotaError for a name that is not configured."""
        if name not in self.servers:
            known = ", ".join(self.servers)
            fix = f"the servers are {known}" if known else "this node has no remote.servers"
            raise QuotaError(source, name, "is no server in remote.servers of gpushare.yaml", fix)
        return self.servers[name]

    def across_nodes(self, variables: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables of a container on a node without cards, OrionX's for remote in ours.

        Only one server can be meant, and only one card. An amount stays, and is refused: the quota
        is set where the server runs.
        """
        if variables.get(CROSS_NODE) != "1" or len(self.servers) != 1:
            return variables
        kept = {name: text for name, text in variables.items() if name != CROSS_NODE}
        if kept.get("ORION_VGPU") == "1":
            del kept["ORION_VGPU"]
        return {"GPUSHARE_REMOTE": next(iter(self.servers)), **kept}


def remote_gpus(given: Mapping[str, Any]) -> RemoteGpus:
    """Return what the section says, which has been checked."""
    engines, servers = given.get("engines") or {}, given.get("servers") or {}
    return RemoteGpus(
        {
            name: RemoteEngine(
                Path(engine["libraries"]), engine["version"], dict(engine.get("environment") or {})
            )
            for name, engine in engines.items()
        },
        {name: RemoteServer(**server) for name, server in servers.items()},
    )


def problems(given: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield what is wrong in a section whose form is right: the place, and a text with the fix."""
    engines = given.get("engines") or {}
    for name, server in (given.get("servers") or {}).items():
        if server["engine"] not in engines:
            known = ", ".join(engines) or "none yet"
            text = f"{quoted(server['engine'])} is no engine of remote.engines; they are {known}"
            yield ("remote", "servers", name, "engine"), text
    for name, engine in engines.items():
        for variable, text in (engine.get("environment") or {}).items():
            unknown = [place for place in _PLACE.findall(text) if place not in PLACES]
            if unknown:
                place = ("remote", "engines", name, "environment", variable)
                yield place, f"{{{unknown[0]}}} is not known; write {{server}} or {{session}}"
