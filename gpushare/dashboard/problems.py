# SPDX-License-Identifier: Apache-2.0
"""Problems, and the containers that wait. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypedDict

from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from gpushare.protocol.queue import QueueEntry
    from gpushare.protocol.rows import CardRow, TenantStatus

#: A container that waits for less than this part of the time is not listed.
LEAST_THROTTLED: Final = 0.05


class DashboardProblem(TypedDict):
    """Something that an operator should know. `card` or `key` is what it is about, if anything."""

    text: str
    card: str  # UUID
    key: str  # of a container


class WaitingContainer(TypedDict):
    """A container that waits, and for what. `key` is empty before it has a reservation."""

    key: str
    name: str
    reason: str


def problems(
    cards: Sequence[CardRow], tenants: Sequence[TenantStatus], warnings: Sequence[str]
) -> list[DashboardProblem]:
    """Return what gpushared warns of, the node and the containers, and closed cards."""
    return [
        *(DashboardProblem(text=text, card="", key="") for text in warnings),
        *(each for card in cards for each in _of_card(card)),
        *(
            DashboardProblem(text=text, card="", key=tenant["key"])
            for tenant in tenants
            for text in tenant["warnings"]
        ),
    ]


def waiting(
    tenants: Sequence[TenantStatus], queue: Sequence[QueueEntry] = ()
) -> list[WaitingContainer]:
    """Return the containers that wait for their start or for a card, the longest waits first.

    Those of the queue come before, in its order.
    """
    found: list[tuple[float, WaitingContainer]] = []
    for tenant in tenants:
        ratio = max(
            (card["compute"]["throttled"]["1s"] or 0.0 for card in tenant["cards"]), default=0.0
        )
        if tenant["state"] == "reserved":
            part, reason = 1.0, "reserved, has not started yet"
        elif ratio >= LEAST_THROTTLED:
            part, reason = ratio, f"waits for its card {100 * ratio:.0f} % of the time"
        else:
            continue
        row = WaitingContainer(key=tenant["key"], name=name_of(tenant), reason=reason)
        found.append((part, row))
    queued = [
        WaitingContainer(
            key="",
            name=one["name"] or one["ticket"],
            reason=(
                f"position {one['position']} of the queue, for {one['requests']}: {one['reason']}"
                if one["state"] == "waiting"
                else f"was granted {one['requests']}, has not started yet"
            ),
        )
        for one in queue
    ]
    return queued + [row for _, row in sorted(found, key=lambda one: -one[0])]


def name_of(tenant: TenantStatus) -> str:
    """Return the engine's name of a container, or the start of its id."""
    return tenant["name"] or tenant["id"][:12]


def mode_of(*, mode: str, isolation: str = "", uuid: str = "") -> str:
    """Return how a card, or a part of it, is used: whole, share, MPS, MIG; empty: unused."""
    if uuid.startswith("MIG-"):
        return "MIG"
    if "mps" in {mode, isolation}:
        return "MPS"
    if "exclusive" in {mode, isolation}:
        return "whole"
    return "" if mode == "unused" else "share"


def _of_card(card: CardRow) -> Iterator[DashboardProblem]:
    called, uuid = f"Card {card['index']}", card["uuid"]
    if card["cordoned"]:
        reason = f": {card['cordon_reason']}" if card["cordon_reason"] else ""
        yield DashboardProblem(text=f"{called} is cordoned{reason}", card=uuid, key="")
    if card["unattributed_bytes"]:
        size = format_size(card["unattributed_bytes"])
        text = f"{called} has {size} in use by no process that the driver reports"
        yield DashboardProblem(text=text, card=uuid, key="")
