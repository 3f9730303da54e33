# SPDX-License-Identifier: Apache-2.0
"""What a user calls a container: the engine's name, namespace/id or namespace/pod/container.

A name is for people: nothing is enforced by it, and an engine that does not answer costs nothing
but the name. Docker is asked over its socket, only after the container was bound: while it starts,
docker holds a lock that the question would wait for. podman mostly has no socket: its storage is
looked at.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.oci.bounded import read_at_most
from gpushare.oci.pods import containerd_namespace
from gpushare.quota import Pod, pod_of

#: What an engine that is told to can write; shown to people and put into messages.
NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)
_DOCKER_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MOST_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class Name:
    """A container's engine and name; `name` is empty where only the engine can tell it."""

    engine: str
    name: str


def from_spec(identity: str, bundle: str, annotations: Mapping[str, str]) -> Name:
    """Return what the bundle's path and the spec's annotations say, asking nobody."""
    task = containerd_namespace(bundle)
    pod = pod_of(annotations) or Pod("")
    parts = (pod.namespace, pod.name, pod.container)
    if all(NAME.fullmatch(part) for part in parts):
        return Name("containerd" if task else "cri-o", "/".join(parts))
    if task:
        # An id like docker's may be docker's in any namespace of containerd: it is asked.
        engine = "docker" if task == "moby" else "containerd"
        return Name(engine, "" if _DOCKER_ID.fullmatch(identity) else f"{task}/{identity}")
    if bundle.endswith("/userdata") and _DOCKER_ID.fullmatch(identity):
        return Name("podman", "")
    return Name("runc", identity)


def stored(identity: str, bundle: str) -> Name | None:
    """Return the name that podman's storage, of which the bundle is a part, has for a container.

    Source: containers/storage, store.go: the list of containers lies beside their folders, and that
    of those that go with their end (`--rm`) in a file of its own.
    """
    if not _DOCKER_ID.fullmatch(identity) or not bundle.endswith(f"/{identity}/userdata"):
        return None
    folder = Path(bundle).parent.parent
    for file in ("containers.json", "volatile-containers.json"):
        for container in _containers(folder / file):
            if container.get("id") == identity:
                names = container.get("names") or [""]
                return Name("podman", names[0]) if NAME.fullmatch(str(names[0])) else None
    return None


def _containers(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            found = json.loads(read_at_most(file.fileno(), _MOST_BYTES))
    except (OSError, ValueError):
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def ask(identity: str, sockets: Iterable[Path], seconds: float) -> Name | None:
    """Return the name that the first of `sockets` (docker's API) has for a container.

    None when no engine answers within `seconds` each, or none knows it.
    """
    if not _DOCKER_ID.fullmatch(identity):
        return None
    for path in sockets:
        name = _ask(identity, path, seconds)
        if name is not None and NAME.fullmatch(name):
            return Name("podman" if "podman" in path.name else "docker", name)
    return None


def _ask(identity: str, path: Path, seconds: float) -> str | None:
    connection = _Connection(path, seconds)
    try:
        connection.request("GET", f"/containers/{identity}/json")
        response = connection.getresponse()
        if response.status != http.client.OK:
            return None
        document = json.loads(response.read(_MOST_BYTES))
        return str(document["Name"]).removeprefix("/")
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
