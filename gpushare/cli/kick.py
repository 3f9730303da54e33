# SPDX-License-Identifier: Apache-2.0
"""`gpushare kick`: end containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare import protocol
from gpushare.cli import session as shared
from gpushare.cli.each import ask_each, names
from gpushare.cli.ps import name
from gpushare.cli.table import printable

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import Tenant


@shared.command("kick", example="gpushare kick train --grace 30 --reason 'card 0 is drained'")
@names
@click.option(
    "--signal",
    type=click.Choice(protocol.KICK_SIGNALS),
    default="TERM",
    show_default=True,
    help="What the first process is sent; KILL ends all at once.",
)
@click.option(
    "--grace",
    type=click.IntRange(0, protocol.KICK_MOST_SECONDS),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="After which all that is left is killed.",
)
@click.option("--reason", default="", metavar="TEXT", help="Why; for the log and the history.")
def command(
    session: Session, containers: tuple[str, ...], signal: str, grace: int, reason: str
) -> None:
    """End containers: a signal for the first process, and after a grace SIGKILL for all.

    One that is paused or frozen goes on for it. It returns at once; `gpushare ps` shows them until
    they have ended. No engine is asked, so one whose restart policy says so starts the container
    again: to have it stay away, stop it there (`docker stop`, `kubectl delete`).

    Refused (exit status 3) is who does not run yet, or shares its cgroup with others: a command of
    `gpushare run` without root.
    """
    ask_each(
        session,
        containers,
        lambda one: session.client.kick(one, signal, grace, reason),
        lambda tenant: _line(tenant, signal, grace),
    )


def _line(tenant: Tenant, signal: str, grace: int) -> str:
    if signal == "KILL" or not grace:
        return printable(f"{name(tenant)}: killed")
    return printable(f"{name(tenant)}: was sent SIG{signal}, is killed in {grace} s")
