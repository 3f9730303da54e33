# SPDX-License-Identifier: Apache-2.0
"""`gpushare ls`: the cards, with their allocated and available capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.session import DEGRADED
from gpushare.cli.text import table
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import CardStatus

HEADINGS = (
    *("CARD", "MODEL", "MEMORY", "ALLOCATED", "BURST", "NON-TENANT", "AVAILABLE"),
    *("CORES", "TENANTS", "MODE", "HEALTH"),
)


@shared.command("ls", example="gpushare ls")
def command(session: Session) -> None:
    """List the cards and their available capacity.

    MEMORY is the card's memory for programs. ALLOCATED is the sum of the containers' quotas, used
    or not. BURST (shown only if there is any) is memory that containers may use, or still hold,
    above their quotas. NON-TENANT is the memory of processes that belong to no container (--json
    lists them). AVAILABLE is what a new container can request. It includes unused burst memory.

    CORES is the allocated share of the compute. TENANTS is the number of containers on the card,
    and the maximum. MODE is unused, shared, or exclusive (one container has the whole card), with
    "cordoned" if gpushare places no new containers on it (see `gpushare card ls`). HEALTH is ok,
    or the problem. If a card has a problem, the exit status is 4.
    """
    cards = session.client.cards()
    session.show_rows(cards, _table, "there is no card. To find the cause, run gpushare doctor.")
    if any(card["health"] != "ok" for card in cards):
        click.get_current_context().exit(DEGRADED)


def _table(cards: list[CardStatus]) -> str:
    rows = [HEADINGS, *map(_row, cards)]
    if not any(card["burst_granted_bytes"] for card in cards):
        burst = HEADINGS.index("BURST")
        rows = [(*row[:burst], *row[burst + 1 :]) for row in rows]
    return table(rows[0], rows[1:])


def _row(card: CardStatus) -> tuple[str, ...]:
    return (
        str(card["index"]),
        card["model"],
        format_size(card["memory_bytes"]),
        format_size(card["allocated_bytes"]),
        format_size(card["burst_granted_bytes"]),
        format_size(card["non_tenant_bytes"]),
        format_size(card["available_bytes"]),
        f"{100 - card['cores_available']} %",
        f"{card['tenants']}/{card['max_tenants']}",
        mode(card),
        card["health"],
    )


def mode(card: CardStatus) -> str:
    """Return how a card is used, for example `shared,cordoned`."""
    return f"{card['mode']},cordoned" if card["cordoned"] else card["mode"]
