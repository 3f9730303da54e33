# SPDX-License-Identifier: Apache-2.0
"""`gpushare card`: how the cards stand to each other, and what an operator sets for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.drain import drain
from gpushare.cli.table import printable, table
from gpushare.errors import UserError
from gpushare.quota.keys import POLICIES
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import Card

LISTED = (
    *("CARD", "UUID", "MODEL", "TAKES", "POLICY", "CORDONED", "NUMA", "NEAREST", "TENANTS"),
    "FREE",
)
POLICY = ("CARD", "MODEL", "POLICY", "CORES", "TENANTS")
NONE = "there is no card; gpushare doctor says why"
OWN = "as each asks"
NOT_KNOWN = "?"


class NoSuchCard(UserError):
    """A card was named that there is none of."""


@click.group("card", epilog="Example: gpushare card ls")
@shared.shared_options
def command() -> None:
    """Say how a card is shared, or take it out of service."""


@shared.command("ls", example="gpushare card ls")
def ls(session: Session) -> None:
    """List the cards with what an operator set for each, and which are near to which.

    TAKES is which requests may have it: any, shared (no whole card) or exclusive (whole cards
    only), by `cards` in gpushare.yaml. POLICY is what `gpushare card policy` set, CORDONED whether
    nothing new is placed on it. NUMA is its node. NEAREST is the best link to another card, and
    to which: NV4 are four NVLinks, PIX one PCIe switch, PXB several, PHB a host bridge, NODE the
    same NUMA node, SYS another (as nvidia-smi topo -m; --json has all links).
    """
    session.show_rows(session.client.cards(), _listed, NONE)


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
    session.show_rows(cards, _policies, NONE)


@shared.command("cordon", example='gpushare card cordon 0 --reason "ECC errors"')
@click.argument("card")
@click.option("--reason", metavar="TEXT", help="Shown to whoever is refused the card.")
def cordon(session: Session, card: str, reason: str | None) -> None:
    """Place nothing new on a card; who is on it goes on.

    CARD is an index of `gpushare ls` or a UUID. A container of it that is stopped and started
    again is placed on another card, or refused. It outlives restarts and reboots, until
    `gpushare card uncordon`.
    """
    shown = session.client.cordon(card, reason)
    session.show(shown, lambda: _listed([shown]))


@shared.command("uncordon", example="gpushare card uncordon 0")
@click.argument("card")
def uncordon(session: Session, card: str) -> None:
    """Place on a card again."""
    shown = session.client.uncordon(card)
    session.show(shown, lambda: _listed([shown]))


def _is(card: Card, name: str) -> bool:
    short = len(name) >= 8 and card["uuid"].startswith(name)  # as the daemon takes it
    return short or name in {str(card["index"]), card["uuid"]}


def _policies(cards: list[Card]) -> str:
    return table(POLICY, map(_policy_row, cards))


def _policy_row(card: Card) -> tuple[str, ...]:
    return (
        str(card["index"]),
        card["model"],
        card["policy"] or OWN,
        f"{100 - card['cores_free']} %",
        f"{card['tenants']}/{card['tenants_max']}",
    )


def _listed(cards: list[Card]) -> str:
    return table(LISTED, map(_row, cards))


def _row(card: Card) -> tuple[str, ...]:
    return (
        str(card["index"]),
        card["uuid"],
        card["model"],
        card["takes"],
        card["policy"] or OWN,
        _cordoned(card),
        NOT_KNOWN if card["numa"] is None else str(card["numa"]),
        _nearest(card),
        f"{card['tenants']}/{card['tenants_max']}",
        format_size(card["free_bytes"]),
    )


def _cordoned(card: Card) -> str:
    if not card["cordoned"]:
        return "no"
    return f"yes: {printable(card['cordon_reason'])}" if card["cordon_reason"] else "yes"


def _nearest(card: Card) -> str:
    """Return `NV4 1`: the best link, and the cards that it leads to."""
    known = [link for link in card["links"] if link["kind"] != NOT_KNOWN]
    if not known:
        return "-"
    least = min(link["distance"] for link in known)
    near = [link for link in known if link["distance"] == least]
    return f"{near[0]['kind']} {','.join(str(link['index']) for link in near)}"


for one in (ls, policy, cordon, uncordon, drain):
    command.add_command(one)
