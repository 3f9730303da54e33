# SPDX-License-Identifier: Apache-2.0
"""Where every byte of a tenant is."""

from __future__ import annotations

from typing import TypedDict


class WhyLack(TypedDict):
    """What the driver had not got though it was promised; `times` since gpushared started."""

    bytes: int  # the last time
    seen: float  # seconds since the epoch
    times: int


class WhyCard(TypedDict):
    """Where every byte of a tenant's part of one card is: `parts` add up to `used_bytes`.

    The parts are buffers, managed, pools, physical (VMM), arrays, graphs, modules, limits (heap,
    stack and FIFO), external and contexts, as the tenant's own account has them; orphaned, shared
    memory whose maker is gone; and beyond, what the driver was found to have beside the account. Of
    a whole card, which has no account, all is beyond.
    """

    index: int
    uuid: str
    model: str
    memory_bytes: int  # quota
    memory_limit_bytes: int  # what it may use while the card has it to lend
    limit_bytes: int  # what it may use now: memory_bytes and what it is lent
    used_bytes: int
    parts: dict[str, int]
    contexts: int
    context_bytes: int  # the price of one
    pool_kept_bytes: int  # of pools: free, kept for their next allocation
    exported_bytes: int  # of used: the tenant's other processes may map it
    imported_bytes: int  # the most that one process maps of others'; counted where it was made
    expected_bytes: int  # what the driver should have, by the account
    driver_bytes: int | None  # what it has for the tenant's processes; None: it does not say
    drift_bytes: int | None  # driver_bytes - expected_bytes
    drift: str  # the same in words
    lacked: WhyLack | None  # None: it had what it asked for


class WhyHeld(TypedDict):
    """What one process holds on one card: `parts`, those that are not 0, add up to `bytes`."""

    index: int
    bytes: int
    parts: dict[str, int]
    contexts: int
    exported_bytes: int
    imported_bytes: int
    driver_bytes: int | None


class WhyProcess(TypedDict):
    """A process that has an account, or that the driver knows; `cards` where it holds any."""

    pid: int | None  # the host's; None: ended, or not among the container's processes
    container_pid: int
    name: str
    accounted: bool  # False: the driver knows it, and the account does not
    denied: int
    denied_bytes: int  # what the last of them asked for
    cards: list[WhyHeld]


class Denied(TypedDict):
    """An allocation that the quota refused."""

    bytes: int
    container_pid: int
    seen: float | None  # seconds since the epoch; None: before this daemon looked


class Why(TypedDict):
    """Where a tenant's memory is, and what to do about it."""

    key: str
    id: str
    name: str
    state: str
    why: str  # for state none: what to add to get a GPU
    isolation: str
    stale: str  # why the driver's figures are old; empty: they are not
    cards: list[WhyCard]
    denied: int  # allocations over the quota, of ended processes too; since gpushared started
    last_denied: Denied | None
    advice: list[str]
    notes: list[str]  # what it asked for and got otherwise, or not
    processes: list[WhyProcess]  # sent as rows
