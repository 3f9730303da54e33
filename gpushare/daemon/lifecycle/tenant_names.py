# SPDX-License-Identifier: Apache-2.0
"""Names of containers, as users know them, and the one tenant that a user means.

A name is the engine's, namespace/id or namespace/pod/container. It is for people: nothing is
enforced by it, and an engine that does not answer costs nothing but the name. Docker is asked over
its socket, only after the container was bound, and when a client shows it: while it starts, docker
holds a lock that the question would wait for. podman mostly has no socket: its storage is looked
at. The ledger keeps the answer.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger, TenantNotFound
from gpushare.daemon.store.record import TenantRecord
from gpushare.oci.request import containerd_namespace, podman_name
from gpushare.quota.annotations import PodIdentity, pod_of
from gpushare.quota.errors import quoted
from gpushare.unix_http import UnixSocketConnection

#: What an engine that is told to can write; shown to people and put into messages.
NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)
_DOCKER_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MOST_BYTES: Final = 4 << 20
_MOST_LABEL_LETTERS: Final = 128
# Of the connection; then of an answer that is no document of an engine's.
_NO_ENGINE: Final = OSError, http.client.HTTPException
_NO_NAME: Final = ValueError, LookupError, TypeError, AttributeError
_LEARN_SECONDS: Final = 5.0
_ENGINE_SECONDS: Final = 0.5  # one engine about one container, while a user waits
_SHOW_SECONDS: Final = 1.0  # after which the rest is shown by id

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


# --- the names of tenants ---


def learn_name(key: str, state: DaemonState) -> None:
    """Ask what tenant `key` is called, else it is asked when it is shown; names thread."""
    record = state.ledger.entries.get(key)
    if record is None or record.name:
        return
    name = _name_of(record, state.node, state.ledger, _LEARN_SECONDS)
    if name is not None:
        _keep(key, name, state)


def with_names(records: Sequence[TenantRecord], state: DaemonState) -> list[TenantRecord]:
    """Return `records` with the names that engines return at once.

    Those that are only reserved are being started: an engine would not answer.
    """
    named = []
    until = time.monotonic() + _SHOW_SECONDS
    for record in records:
        name = None
        if not record.name and record.state != "reserved" and time.monotonic() < until:
            name = _name_of(record, state.node, state.ledger, _ENGINE_SECONDS)
        if name is not None:
            _keep(record.key, name, state)
            record = replace(record, name=name.name, engine=name.engine)  # noqa: PLW2901
        named.append(record)
    return named


def _name_of(
    record: TenantRecord, node: Node, ledger: Ledger, seconds: float
) -> ContainerName | None:
    name = stored_name(record.id, record.bundle)
    name = name or ask_engines(record.id, node.config.docker_sockets, seconds)
    if name is None:
        return None
    other = find_conflict(name.name, record.key, ledger.entries)
    if other is None:
        return name
    log(
        "tenant-name-refused",
        "warning",
        tenant=record.key,
        id=record.id,
        refused_name=name.name,
        other=other.key,
    )
    return replace(name, name=record.id[:12])  # so that no engine is asked again


def _keep(key: str, name: ContainerName, state: DaemonState) -> None:
    def rename() -> None:
        if key in state.ledger.entries:
            labels = recorded_labels(name.labels, state.node.config.labels)
            labels = {**state.ledger.entries[key].labels, **labels}
            state.ledger.change(key, name=name.name, engine=name.engine, labels=labels)

    state.decide.submit(rename)


def find_tenant(name: str, state: DaemonState) -> TenantRecord:
    """Return the one tenant that `name` means: its name, an end of it, or the start of its id.

    Users choose names, so no kind of match takes precedence over another: a name that is also the
    id of another tenant, or the end of its name, is ambiguous. If there is no match, it is the one
    tenant whose name, or an end of it, begins so.
    """
    records = with_names(list(state.ledger.entries.values()), state)
    by_id = [record for record in records if name in {record.id, record.key}]
    by_id = by_id or [record for record in records if record.id.startswith(name)]
    by_name = [
        record for record in records if record.name == name or record.name.endswith(f"/{name}")
    ]
    matches = list({record.key: record for record in (*by_id, *by_name)}.values())
    is_start = not matches
    if is_start:
        matches = [record for record in records if f"/{name}" in f"/{record.name}"]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        known = [record.title for record in records][:16]
        raise TenantNotFound(f"no container is named {quoted(name)}; see gpushare ps -a", known)
    titles = [record.name or record.id for record in matches]
    relation = "is the start of the names" if is_start else "is the name"
    if by_id and by_name:
        text = f"{quoted(name)} is the name of one container and the ID of another"
    elif len(set(titles)) < len(titles) or name in titles:
        text = f"{quoted(name)} {relation} of several containers"
    else:
        raise TenantNotFound(f"{quoted(name)} {relation} of several containers", titles[:16])
    listed = [f"{record.title} (ID {record.id[:12]}, key {record.key})" for record in matches[:16]]
    keys = [record.key for record in matches[:16]]
    raise TenantNotFound(f"{text}: {', '.join(listed)}. Use a key", keys)
