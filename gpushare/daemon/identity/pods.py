# SPDX-License-Identifier: Apache-2.0
"""Containers of one pod: what the daemon, which sees one at a time, knows of the others.

All of them come with the annotations of the pod and the id of its sandbox. The ledger has those
that were given a part of a GPU, and the sandbox's own spec says which annotations are the pod's.
Nothing says how many containers there will be, nor which of them are init containers
(docs/adr/0017).
"""

from __future__ import annotations

import os

from gpushare.daemon.identity import processes
from gpushare.daemon.life import release
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry
from gpushare.quota import Asked, Pod, Quota, QuotaError, dialects
from gpushare.quota.annotations import scoped_name


def settle(pod: Pod, node: Node) -> None:
    """Release what containers of `pod` that are gone had: an init container is, before the next."""
    for entry in _of(pod, node):
        if _is_gone(entry, node):
            release.end(entry.key, node, "the next container of its pod is made")


def refuse_second(pod: Pod, quota: Quota, node: Node) -> None:
    """Refuse what the pod is asked for without a name where another container of it has that.

    QuotaError. Whoever was refused so while the other ran stays refused, whether it runs or not.
    """
    asked = quota.unnamed
    if asked is None or not pod.sandbox:
        return
    holder = next((entry for entry in _of(pod, node) if entry.container != pod.container), None)
    if holder is not None and _runs(holder):
        node.siblings.note(pod.sandbox, pod.container, holder.container)
    had = node.siblings.before(pod.sandbox, pod.container)
    if holder is None and not had:
        return
    first = holder.container if holder is not None else had
    rule = f"names no container, and {first} of pod {pod} has it"
    raise QuotaError(str(asked.source), asked.shown, rule, _to_name(first, pod, quota, asked))


def _to_name(first: str, pod: Pod, quota: Quota, asked: Asked) -> str:
    """Return what to write so that one container is named, in the words of who asked."""
    theirs = dialects.naming(dialects.TABLES, asked.source.name)
    if theirs:
        return f"write {theirs}: {first}"
    key = next((key for key, one in quota.asked.items() if one.source == asked.source), "memory")
    return (
        f"write {scoped_name(first, key)}, and {scoped_name(pod.container, key)} if this one needs "
        "a part of a GPU too"
    )


def _of(pod: Pod, node: Node) -> list[Entry]:
    """Return the tenants of `pod` that have a part of a GPU."""
    entries = node.ledger.entries.values()
    return [entry for entry in entries if pod.sandbox == entry.sandbox != "" and entry.holdings]


def _is_gone(entry: Entry, node: Node) -> bool:
    """Whether nothing of it runs, or ever will: what was to make it has ended before it did."""
    if entry.state == "bound":
        return release.is_gone(entry, node)
    return release.is_abandoned(entry)


def _runs(entry: Entry) -> bool:
    pidfd = processes.open_pidfd(entry.pid, entry.starttime) if entry.state == "bound" else None
    if pidfd is None:
        return False
    os.close(pidfd)
    return True
