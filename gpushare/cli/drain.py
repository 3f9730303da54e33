# SPDX-License-Identifier: Apache-2.0
"""`gpushare card drain`: a card is cordoned, and is empty in the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from gpushare import protocol
from gpushare.cli import session as shared
from gpushare.cli.table import printable, table
from gpushare.client import Refused, UnknownTenant
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session
    from gpushare.client import Client
    from gpushare.protocol import Card, Tenant

HEADINGS: Final = ("CONTAINER", "STATE", "MEMORY", "PID")
POLL_SECONDS: Final = 0.5
INTERRUPTED: Final = 130  # as a shell's: 128 and SIGINT
REFUSED: Final = 3


@shared.command("drain", example="gpushare card drain 0 --wait")
@click.argument("card")
@click.option("--reason", metavar="TEXT", help="Shown to whoever is refused the card.")
@click.option("--wait", is_flag=True, help="Return when nobody is on the card any more.")
@click.option("--kick", is_flag=True, help="End who is on it, as gpushare kick does.")
@click.option(
    "--grace",
    type=click.IntRange(0, protocol.KICK_MOST_SECONDS),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="After which --kick kills what is left.",
)
def drain(
    session: Session, card: str, reason: str | None, wait: bool, kick: bool, grace: int
) -> None:
    """Take a card out of service: cordon it, and show who is still on it.

    CARD is an index of `gpushare ls` or a UUID. Nothing new is placed on it, and containers that
    are on it go on until they end; with --wait the command ends when the last of them has, with
    --kick they are ended. One that its engine starts again is placed on another card, or refused.
    Interrupted (Ctrl-C), it leaves the card cordoned; `gpushare card uncordon` undoes that.

    Where one of them cannot be ended the exit status is 3; the others are.
    """
    client = session.client
    cordoned = client.cordon(card, reason)
    here = list(_on(cordoned, client))
    why = reason or f"card {cordoned['index']} is drained"
    refused = [one for one in here if kick and not _kicked(one, grace, why, client)]
    if wait:
        here = _waited(cordoned, here, client)
    session.show({"card": cordoned, "tenants": here}, lambda: _text(cordoned, here))
    if refused:
        click.get_current_context().exit(REFUSED)


def _kicked(tenant: Tenant, grace: int, why: str, client: Client) -> bool:
    """Have a tenant end; where it cannot be, say why."""
    try:
        client.kick(tenant["key"], "TERM", grace, why)
    except (Refused, UnknownTenant) as error:  # of the latter: it has ended by now
        click.echo(f"gpushare: {printable(str(error))}", err=True)
        return isinstance(error, UnknownTenant)
    return True


def _on(card: Card, client: Client) -> Iterator[Tenant]:
    for tenant in client.tenants():
        if any(part["uuid"] == card["uuid"] for part in tenant["cards"]):
            yield tenant


def _waited(card: Card, here: list[Tenant], client: Client) -> list[Tenant]:
    """Return when nobody is on the card; who is still there is told on stderr as it changes."""
    told: list[str] = []
    try:
        while here:
            names = [tenant["name"] for tenant in here]
            if names != told:
                who = printable(", ".join(names))
                click.echo(f"card {card['index']}: waiting for {len(names)}: {who}", err=True)
                told = names
            time.sleep(POLL_SECONDS)
            here = list(_on(card, client))
    except KeyboardInterrupt:
        index = card["index"]
        click.echo(
            f"card {index} stays cordoned, {len(here)} still on it; "
            f"to undo: gpushare card uncordon {index}",
            err=True,
        )
        click.get_current_context().exit(INTERRUPTED)
    return here


def _text(card: Card, here: list[Tenant]) -> str:
    index = card["index"]
    if not here:
        return f"card {index} is cordoned, and nobody is on it"
    rows = (_row(card, tenant) for tenant in here)
    return f"card {index} is cordoned; still on it:\n{table(HEADINGS, rows)}"


def _row(card: Card, tenant: Tenant) -> tuple[str, ...]:
    memory_bytes = sum(
        part["memory_bytes"] for part in tenant["cards"] if part["uuid"] == card["uuid"]
    )
    pid = str(tenant["pid"]) if tenant["pid"] else "-"
    return tenant["name"], tenant["state"], format_size(memory_bytes), pid
