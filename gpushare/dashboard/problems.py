# SPDX-License-Identifier: Apache-2.0
"""Problems, the most urgent first, and the containers that wait. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from gpushare.protocol.rows import RUN_STATES
from gpushare.quota.size import format_size, format_use

if TYPE_CHECKING:
    from gpushare.protocol.queue import QueueEntry
    from gpushare.protocol.rows import CardRow, TenantStatus

ProblemLevel = Literal["error", "warning"]
#: A container that waits for less than this part of the time is not listed.
LEAST_THROTTLED: Final = 0.05


class DashboardProblem(TypedDict):
    """Something that an operator should know. `card` or `key` is what it is about, if anything."""

    level: ProblemLevel
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
    """Return the problems of a node."""
    found = [
        *(_problem("warning", text) for text in warnings),
        *(each for card in cards for each in _of_card(card)),
        *(each for tenant in tenants for each in _of_tenant(tenant)),
    ]
    return sorted(found, key=lambda one: one["level"] != "error")


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


def _problem(level: ProblemLevel, text: str, *, card: str = "", key: str = "") -> DashboardProblem:
    return DashboardProblem(level=level, text=text, card=card, key=key)


def _of_card(card: CardRow) -> Iterator[DashboardProblem]:
    called, uuid = f"Card {card['index']}", card["uuid"]
    if card["health"] != "ok":
        yield _problem("error", f"{called} is unhealthy: {card['health']}", card=uuid)
    if card["cordoned"]:
        reason = f": {card['cordon_reason']}" if card["cordon_reason"] else ""
        yield _problem("warning", f"{called} is cordoned{reason}", card=uuid)
    if card["unattributed_bytes"]:
        size = format_size(card["unattributed_bytes"])
        text = f"{called} has {size} in use by no process that the driver reports"
        yield _problem("warning", text, card=uuid)
    for process in card["non_tenant_processes"]:
        if process["container"]:
            text = (
                f"{process['name']} ({process['pid']}) in {process['container']} uses "
                f"{format_size(process['bytes'])} of card {card['index']} without an allocation"
            )
            yield _problem("error", text, card=uuid)


def _of_tenant(tenant: TenantStatus) -> Iterator[DashboardProblem]:
    name, key = name_of(tenant), tenant["key"]
    for intervention in tenant["interventions"]:
        state = RUN_STATES.get(intervention["by"], "frozen")
        level: ProblemLevel = "error" if state == "frozen" else "warning"
        reason = f": {intervention['reason']}" if intervention["reason"] else ""
        yield _problem(level, f"{name} is {state}{reason}", key=key)
    for card in tenant["cards"]:
        where = f"on card {card['index']}"
        if card["over_limit_bytes"]:
            used = format_use(card["used_bytes"], card["limit_bytes"])
            yield _problem("error", f"{name} is over its quota {where}: {used}", key=key)
        if card["compute"]["is_hung"]:
            yield _problem("error", f"{name} has work {where} that does not seem to end", key=key)
        if card["compute"]["gate_bypassed"]:
            yield _problem("warning", f"{name} bypasses the launch gate {where}", key=key)
    if count := tenant["denied_allocations"]:
        text = f"{name} was refused {count} allocations over its quota so far"
        yield _problem("warning", text, key=key)
    mps = tenant["mps"]
    if mps and mps["lost"]:
        yield _problem("error", f"{name} has to be restarted: {mps['lost']}", key=key)
    evicted = tenant["eviction"]
    if evicted is not None and evicted["state"] == "failed":
        text = f"{name}: eviction failed, the driver has lost its GPU memory: {evicted['error']}"
        yield _problem("error", text, key=key)
    if evicted is not None and evicted["waits_since"] is not None:
        size = format_size(evicted["bytes"])
        text = f"{name} uses CUDA while it is evicted: its restore of {size} waits"
        yield _problem("warning", text, key=key)
    if tenant["idle_since"] is not None and evicted is None:
        used = format_size(sum(card["used_bytes"] for card in tenant["cards"]))
        yield _problem("warning", f"{name} holds {used} and does not use its cards", key=key)
