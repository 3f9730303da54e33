# SPDX-License-Identifier: Apache-2.0
"""The names of tenants: which engine says one, and the one tenant that a user means.

gpushared asks an engine for a container's name after it was bound, and when a client shows it. The
ledger keeps the answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.identity import container_names
from gpushare.daemon.node import Node
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger, TenantNotFound
from gpushare.daemon.store.record import TenantRecord
from gpushare.quota.errors import quoted

_LEARN_SECONDS: Final = 5.0
_ENGINE_SECONDS: Final = 0.5  # one engine about one container, while a user waits
_SHOW_SECONDS: Final = 1.0  # after which the rest is shown by id


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
) -> container_names.ContainerName | None:
    name = container_names.stored_name(record.id, record.bundle)
    name = name or container_names.ask_engines(record.id, node.config.docker_sockets, seconds)
    if name is None:
        return None
    other = container_names.find_conflict(name.name, record.key, ledger.entries)
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


def _keep(key: str, name: container_names.ContainerName, state: DaemonState) -> None:
    def rename() -> None:
        if key in state.ledger.entries:
            labels = container_names.recorded_labels(name.labels, state.node.config.labels)
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
