# SPDX-License-Identifier: Apache-2.0
"""Names of containers, as users know them: the engine's, namespace/id, namespace/pod/container.

A name is for people: nothing is enforced by it, and an engine that does not answer costs nothing
but the name. Docker is asked over its socket, only after the container was bound: while it starts,
docker holds a lock that the question would wait for. podman mostly has no socket: its storage is
looked at.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.daemon.store.record import TenantRecord
from gpushare.oci.request import containerd_namespace, podman_name
from gpushare.quota.annotations import PodIdentity, pod_of
from gpushare.unix_http import UnixSocketConnection

#: What an engine that is told to can write; shown to people and put into messages.
NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)
_DOCKER_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MOST_BYTES: Final = 4 << 20
_MOST_LABEL_LETTERS: Final = 128
# Of the connection; then of an answer that is no document of an engine's.
_NO_ENGINE: Final = OSError, http.client.HTTPException
_NO_NAME: Final = ValueError, LookupError, TypeError, AttributeError


SHORTEST_ID: Final = 4  # of a name that is refused because another tenant's id begins with it


def find_conflict(name: str, key: str, records: Mapping[str, TenantRecord]) -> TenantRecord | None:
    """Return the tenant that `name`, chosen for tenant `key`, would be mistaken for.

    It is another one whose id or key is `name`, or whose id begins with it: an operator who names
    a container by its id must never reach the one of a user who chose that name.
    """
    for record in records.values():
        is_prefix = len(name) >= SHORTEST_ID and record.id.startswith(name)
        if record.key != key and (is_prefix or name in {record.id, record.key}):
            return record
    return None


@dataclass(frozen=True)
class ContainerName:
    """A container's engine and name; `name` is empty where only the engine knows it.

    `labels` are those of the engine.
    """

    engine: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


def name_from_spec(identity: str, bundle: str, annotations: Mapping[str, str]) -> ContainerName:
    """Return the name by the bundle's path and the spec's annotations, without asking an engine."""
    task = containerd_namespace(bundle)
    pod = pod_of(annotations) or PodIdentity("")
    parts = (pod.namespace, pod.name, pod.container)
    if all(NAME.fullmatch(part) for part in parts):
        return ContainerName("containerd" if task else "cri-o", "/".join(parts))
    if task:
        # An id like docker's may be docker's in any namespace of containerd: it is asked.
        engine = "docker" if task == "moby" else "containerd"
        return ContainerName(engine, "" if _DOCKER_ID.fullmatch(identity) else f"{task}/{identity}")
    if bundle.endswith("/userdata") and _DOCKER_ID.fullmatch(identity):
        return ContainerName("podman", "")
    return ContainerName("runc", identity)


def stored_name(identity: str, bundle: str) -> ContainerName | None:
    """Return the name that podman's storage, which has the bundle, has for a container."""
    if not bundle.endswith(f"/{identity}/userdata"):
        return None
    name = podman_name(bundle)
    return ContainerName("podman", name) if NAME.fullmatch(name) else None


def recorded_labels(labels: Mapping[str, object], names: Iterable[str]) -> dict[str, str]:
    """Return those of `labels` that gpushare.yaml names; users choose their values."""
    recorded = {name: labels[name] for name in names if name in labels}
    return {
        name: value
        for name, value in recorded.items()
        if isinstance(value, str) and value.isprintable() and len(value) <= _MOST_LABEL_LETTERS
    }


def ask_engines(identity: str, sockets: Iterable[Path], seconds: float) -> ContainerName | None:
    """Return the name and labels that the first of `sockets` (docker's API) has for a container.

    None when no engine answers within `seconds` each, or none knows it.
    """
    if not _DOCKER_ID.fullmatch(identity):
        return None
    for path in sockets:
        name = _ask(identity, path, seconds)
        if name is not None and NAME.fullmatch(name.name):
            return name
    return None


def _ask(identity: str, path: Path, seconds: float) -> ContainerName | None:
    with (
        suppress(*_NO_ENGINE, *_NO_NAME),
        closing(UnixSocketConnection(path, seconds)) as connection,
    ):
        connection.request("GET", f"/containers/{identity}/json")
        response = connection.getresponse()
        if response.status == http.client.OK:
            document = json.loads(response.read(_MOST_BYTES))
            engine = "podman" if "podman" in path.name else "docker"
            labels = dict(document.get("Config", {}).get("Labels") or {})
            return ContainerName(engine, str(document["Name"]).removeprefix("/"), labels)
    return None
