# SPDX-License-Identifier: Apache-2.0
"""`gpushare card`: what an operator sets for a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.table import table
from gpushare.errors import UserError
from gpushare.quota.keys import POLICIES

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import Card

HEADINGS = ("CARD", "MODEL", "POLICY", "CORES", "TENANTS")
OWN = "as each asks"


class NoSuchCard(UserError):
    """A card was named that there is none of."""


@click.group("card", epilog="Example: gpushare card policy 0 burst-share")
@shared.shared_options
def command() -> None:
    """Say how a card is shared."""


@shared.command("policy", example="gpushare card policy 0 burst-share")
@click.argument("card", required=False)
@click.argument("policy", type=click.Choice(POLICIES), required=False, metavar="[POLICY]")
@click.option("--reset", is_flag=True, help="Let each container have the policy that it asks for.")
def policy(session: Session, card: str | None, policy: str | None, reset: bool) -> None:
    """Show or set the policy by which the containers of a card share its compute.

    CARD is an index of `gpushare ls` or a UUID; without it all cards are shown. POLICY is
    fixed-share, burst-share, best-effort or native-burst-share. What is set holds
    for all containers that have a part of the card, now and later, in place of what they ask; not
    for those that the operator set another for (`gpushare set`). A container without cores
    keeps its own policy where fixed-share or burst-share is set. It outlives restarts and reboots.

    Where more cores would have to be set aside than the card has, it is refused (exit status 3).
    """
    if reset and (policy or card is None):
        raise click.UsageError("--reset takes a card and no policy, e.g. card policy 0 --reset")
    if card is not None and (policy or reset):
        cards = [session.client.set_card_policy(card, policy)]
    else:
        cards = [one for one in session.client.cards() if card is None or _is(one, card)]
    if card is not None and not cards:
        raise NoSuchCard(f"there is no card {card}; see gpushare ls")
    session.show_rows(cards, _table, "there is no card; gpushare doctor says why")


def _is(card: Card, name: str) -> bool:
    short = len(name) >= 8 and card["uuid"].startswith(name)  # as the daemon takes it
    return short or name in {str(card["index"]), card["uuid"]}


def _table(cards: list[Card]) -> str:
    return table(HEADINGS, map(_row, cards))


def _row(card: Card) -> tuple[str, ...]:
    return (
        str(card["index"]),
        card["model"],
        card["policy"] or OWN,
        f"{100 - card['cores_free']} %",
        f"{card['tenants']}/{card['tenants_max']}",
    )


command.add_command(policy)
