# SPDX-License-Identifier: Apache-2.0
"""The events of the history, page by page, and whose they are by what a user calls it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpushare import protocol
from gpushare.daemon.lifecycle import tenant_names
from gpushare.daemon.node import Node
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.history import EventSubject, History
from gpushare.daemon.store.ledger import TenantNotFound
from gpushare.daemon.store.record import TenantRecord
from gpushare.protocol import HistoryEvent
from gpushare.quota.errors import quoted

_SETTLE_SECONDS: Final = 1.0  # a slow disk delays those who read, and never longer than this
_MOST_LISTED: Final = 16


def event_page(name: str, since: float, after: int, state: DaemonState) -> Iterator[HistoryEvent]:
    """Yield a page of events; TenantNotFound: the name means nothing."""
    if (store := state.history) is None:
        return iter(())
    store.settle(_SETTLE_SECONDS)  # the caller may ask for what it just caused
    records = tenant_names.with_names(list(state.ledger.entries.values()), state)
    subject = _find_subject(name, records, store, state.node) if name else EventSubject()
    return _with_names(store.page(subject, since, after, protocol.HISTORY_ROWS), records)


def _with_names(
    events: Sequence[HistoryEvent], records: Sequence[TenantRecord]
) -> Iterator[HistoryEvent]:
    """Yield `events` with the name that each container has now, if it still exists."""
    current = {record.key: record for record in records}
    for event in events:
        record = current.get(event["key"])
        yield event if record is None else {**event, "id": record.id, "name": record.title}


@dataclass
class _KnownContainer:
    """A container that exists or has events, with the names it had, the last one last."""

    id: str
    keys: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)

    def is_named(self, name: str) -> bool:
        ends = any(f"/{known}".endswith(f"/{name}") for known in self.names)
        is_id = len(name) >= tenant_names.SHORTEST_ID and self.id.startswith(name)
        return ends or is_id or name == self.id or name in self.keys

    def is_of_pod(self, name: str) -> bool:
        """Whether `name` is its pod, namespace/pod or namespace."""
        return any(f"/{name}/" in f"/{known}" for known in self.names)

    def begins(self, name: str) -> bool:
        return self.id.startswith(name) or any(f"/{name}" in f"/{one}" for one in self.names)


def _find_subject(
    name: str, records: Sequence[TenantRecord], store: History, node: Node
) -> EventSubject:
    """Return what `name` means; TenantNotFound.

    The first of these that there is: containers by name, the end of one (`train-0/main`), ID or
    key, also the start of an ID; those of a pod; those whose name or ID
    begins so.
    """
    containers = _known_containers(name, records, store)
    cards = () if node.driver is None else node.driver.cards
    is_card = any(card.uuid == name for card in cards)
    is_card = is_card or (not containers and store.has_card(name))
    named = [container for container in containers if container.is_named(name)]
    if not named and not is_card:
        of_pod = [container for container in containers if container.is_of_pod(name)]
        named = of_pod or [container for container in containers if container.begins(name)]
    if not named and not is_card:
        known = [record.title for record in records][:_MOST_LISTED]
        text = f"no container is named {quoted(name)}, and none with events was; see gpushare ps -a"
        raise TenantNotFound(text, known)
    return EventSubject(
        card=name if is_card else "",
        keys=frozenset(key for container in named for key in container.keys),
        ids=frozenset(
            container.id or container.names[-1]
            for container in named
            if container.id or container.names
        ),
    )


def _known_containers(
    name: str, records: Sequence[TenantRecord], store: History
) -> list[_KnownContainer]:
    """Return the containers that exist, and those whose events could be of `name`."""
    containers: dict[str, _KnownContainer] = {}
    stored = store.containers(name)
    ids = {key: identity for key, identity, _ in stored if key and identity}
    now = [(record.key, record.id, record.name) for record in records]
    for key, identity, called in (*stored, *now):
        known = identity or ids.get(key, "")
        container = containers.setdefault(known or key or called, _KnownContainer(known))
        container.keys |= {key} if key else set()
        container.names += [called] if called else []
    return list(containers.values())
