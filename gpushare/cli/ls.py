# SPDX-License-Identifier: Apache-2.0
"""`gpushare ls`: the cards, what each has promised and can still give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.failure import DEGRADED
from gpushare.cli.table import table
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import Card

HEADINGS = (
    *("CARD", "MODEL", "MEMORY", "PROMISED", "LENT", "FOREIGN", "FREE"),
    *("CORES", "TENANTS", "MODE", "HEALTH"),
)


@shared.command("ls", example="gpushare ls")
def command(session: Session) -> None:
    """List the cards and what is free on each.

    MEMORY is what a card has for programs. PROMISED is the sum of the containers' quotas, used or
    not; LENT (where some is) what containers may use, or still have, above theirs at the moment;
    FOREIGN what processes of no container hold (`--json` names them); FREE what a container may
    still ask for: what is lent and not used is part of it.

    CORES is the part of the compute that is promised. TENANTS is how many containers have a part
    of the card, and how many may. MODE is free (none has), shared, or exclusive (one has all);
    on a card that is cordoned nothing new is placed (`gpushare card ls` says more).
    HEALTH is ok, or what is wrong: then the exit status is 4.
    """
    cards = session.client.cards()
    session.show_rows(cards, _table, "there is no card; gpushare doctor says why")
    if any(card["health"] != "ok" for card in cards):
        click.get_current_context().exit(DEGRADED)


def _table(cards: list[Card]) -> str:
    rows = [HEADINGS, *map(_row, cards)]
    if not any(card["lent_bytes"] for card in cards):
        lent = HEADINGS.index("LENT")
        rows = [(*row[:lent], *row[lent + 1 :]) for row in rows]
    return table(rows[0], rows[1:])


def _row(card: Card) -> tuple[str, ...]:
    return (
        str(card["index"]),
        card["model"],
        format_size(card["memory_bytes"]),
        format_size(card["promised_bytes"]),
        format_size(card["lent_bytes"]),
        format_size(card["foreign_bytes"]),
        format_size(card["free_bytes"]),
        f"{100 - card['cores_free']} %",
        f"{card['tenants']}/{card['tenants_max']}",
        mode(card),
        card["health"],
    )


def mode(card: Card) -> str:
    """Return how a card is used, `shared,cordoned` where nothing new is placed on it."""
    return f"{card['mode']},cordoned" if card["cordoned"] else card["mode"]
