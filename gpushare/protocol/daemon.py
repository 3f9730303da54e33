# SPDX-License-Identifier: Apache-2.0
"""The daemon itself, and what it remembers."""

from __future__ import annotations

from typing import Any, TypedDict


class Status(TypedDict):
    """The daemon itself."""

    version: str
    pid: int
    generation: int  # of the daemons since the machine was started
    scheduler: int  # the process that holds shares of compute; 0: none does
    driver_version: str
    cuda_version: str
    cards: int
    tenants: int
    simulated: bool
    slow_motion: float  # what a simulated card multiplies every duration by; else 1
    config: str
    libraries: str
    run_dir: str
    warnings: list[str]


class HistoryEvent(TypedDict):
    """An event of the node's history (docs/reference/events.md); numbers only grow."""

    number: int
    at: float  # seconds since the epoch, as the clock was then
    boot: str  # the boot's id (random(4))
    generation: int  # how many gpushareds had begun on this history
    event: str
    level: str
    key: str  # the tenant's; empty: of none
    id: str
    name: str
    card: str  # UUID; empty: of none
    fields: dict[str, Any]  # the rest of the log's line
