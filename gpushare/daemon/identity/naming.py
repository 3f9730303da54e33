# SPDX-License-Identifier: Apache-2.0
"""When engines are asked for names: after a container was bound, and when somebody wants to see it.

What was learned is kept in the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpushare.daemon.identity import names
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry

_LEARN_SECONDS: Final = 5.0
_ENGINE_SECONDS: Final = 0.5  # one engine about one container, while a user waits
_SHOW_SECONDS: Final = 1.0  # after which the rest is shown by id
_AGAIN_SECONDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def learn(key: str, node: Node, attempt: int = 0) -> None:
    """Ask what tenant `key` is called, and again for a while where no engine says; names thread."""
    entry = node.ledger.entries.get(key)
    if entry is None or entry.name:
        return
    found = _found(entry, node, _LEARN_SECONDS)
    if found is not None:
        _keep(key, found, node)
    elif attempt < len(_AGAIN_SECONDS):

        def again() -> None:
            node.names.submit(lambda: learn(key, node, attempt + 1))

        node.loop.call(lambda: node.loop.later(_AGAIN_SECONDS[attempt], again))


def with_names(entries: Sequence[Entry], node: Node) -> list[Entry]:
    """Return `entries` with the names that engines tell at once.

    Those that are only reserved are being started: an engine would not tell.
    """
    found = []
    until = time.monotonic() + _SHOW_SECONDS
    for entry in entries:
        asks = not entry.name and entry.state != "reserved" and time.monotonic() < until
        found.append(_with_name(entry, node) if asks else entry)
    return found


def _found(entry: Entry, node: Node, seconds: float) -> names.Name | None:
    stored = names.stored(entry.id, entry.bundle)
    return stored or names.ask(entry.id, node.config.docker_sockets, seconds)


def _with_name(entry: Entry, node: Node) -> Entry:
    found = _found(entry, node, _ENGINE_SECONDS)
    if found is None:
        return entry
    _keep(entry.key, found, node)
    return replace(entry, name=found.name, engine=found.engine)


def _keep(key: str, name: names.Name, node: Node) -> None:
    def rename() -> None:
        if key in node.ledger.entries:
            node.ledger.rename(key, name.name, name.engine)

    node.decide.submit(rename)
