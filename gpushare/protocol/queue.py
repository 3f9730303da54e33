# SPDX-License-Identifier: Apache-2.0
"""The queue: starts that wait for room, and what their clients are told."""

from __future__ import annotations

from typing import Literal, TypedDict


class Ticket(TypedDict):
    """A new ticket. Whoever shows the `secret` starts with what was granted to it."""

    ticket: str
    secret: str


class TicketStatus(TypedDict):
    """The state of a ticket."""

    state: Literal["waiting", "granted", "ended"]
    position: int  # among those that wait, from 1; 0: it does not wait
    waiting: int  # how many wait
    # Why it does not fit; or how it ended: cancelled | timed-out | expired | started | client-ended
    # | refused, and why
    reason: str
    since: float  # seconds since the epoch: when it was taken


class QueueEntry(TypedDict):
    """A start that waits, or that was granted room and has not started yet.

    Also an evicted container that waits for its restore.
    """

    ticket: str  # empty: a restore
    state: Literal["waiting", "granted"]
    position: int  # in the order of grants, from 1; 0: granted
    name: str
    kind: Literal["command", "container", "create", "restore"]
    uid: int
    pid: int  # the process with which it ends; of a restore the container's
    requests: str  # 4 GiB and 30 % of its compute
    count: int | None  # of cards; None: every card
    priority: int
    since: float  # seconds since the epoch
    granted: float  # seconds since the epoch; 0: not yet
    cards: list[int]  # indices of those that are reserved for it
    reason: str  # why it does not fit
