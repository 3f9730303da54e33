# SPDX-License-Identifier: Apache-2.0
"""The pause and resume operations: an operator's word on whether a tenant runs."""

from __future__ import annotations

from gpushare.daemon.control.freezer import CannotHold
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry


def pause(entry: Entry, why: str, node: Node) -> None:
    """Freeze `entry`, through restarts of the daemon, until `resume`; CannotHold."""
    words = {hold.by for hold in node.freezer.holds_of(entry.key)}
    if "kill" in words:
        raise CannotHold(f"{entry.title} is being ended; there is nothing left to pause")
    node.freezer.hold(entry.key, "operator", why)


def resume(entry: Entry, node: Node) -> None:
    """Let `entry` go on, whoever froze it: the operator's word is above the audit's.

    CannotHold where nobody did. The audit looks at it as at one that has just begun.
    """
    released = [by for by in ("operator", "audit", "duty") if node.freezer.release(entry.key, by)]
    if "audit" in released:
        node.audit.resumed(entry.key)
    if "duty" in released:
        node.overuse.resumed(entry.key)
    if not released:
        raise CannotHold(
            f"{entry.title} is neither paused nor frozen by gpushare; what an engine has paused "
            "it lets go on: docker unpause, podman unpause"
        )
