# SPDX-License-Identifier: Apache-2.0
"""The kick operation: a tenant is asked to end, and after a while it is ended.

It goes through no engine: one whose restart policy says so starts the container again.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from gpushare.daemon.control.freezer import CannotHold
from gpushare.daemon.identity import processes
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry


@dataclass(frozen=True)
class Kick:
    """What the first process is sent, and how long it has to end; why, for the log."""

    number: signal.Signals
    grace_seconds: int
    why: str


def kick(entry: Entry, asked: Kick, node: Node) -> None:
    """End `entry`, also where it is frozen; CannotHold: nothing was done.

    That it is to end is journaled before it is told: a daemon that is killed meanwhile does it at
    its next start.
    """
    freezer = node.freezer
    after = 0 if asked.number == signal.SIGKILL else asked.grace_seconds
    why = asked.why or "kicked by an operator"
    held = [hold.by for hold in freezer.holds_of(entry.key) if hold.by != "kill"]
    if after:
        freezer.promise_kill(entry.key, why, after)
    else:
        freezer.kill(entry.key, why)
    log(
        "tenant-kicked",
        "warning",
        tenant=entry.key,
        id=entry.id,
        name=entry.title,
        signal=asked.number.name,
        grace=after,
        why=why,
    )
    if after:
        for by in held:
            freezer.release(entry.key, by)  # it could not hear otherwise
        if "audit" in held:
            node.audit.resumed(entry.key)
        if "duty" in held:
            node.overuse.resumed(entry.key)
        _tell(entry, asked.number)
        node.loop.call(lambda: node.loop.later(after, lambda: _submit(node)))


def _submit(node: Node) -> None:
    node.decide.submit(node.freezer.set_right)


def _tell(entry: Entry, number: signal.Signals) -> None:
    """Send the first process `number`; where it has ended, those that it left have the grace."""
    pidfd = processes.open_pidfd(entry.pid, entry.starttime)
    if pidfd is None:
        return
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise CannotHold(
            f"{entry.title} cannot be sent {number.name} ({error.strerror}); it is killed "
            "when its grace has passed"
        ) from error
    finally:
        os.close(pidfd)
