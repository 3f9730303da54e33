# SPDX-License-Identifier: Apache-2.0
"""`gpushare pause`: freeze containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.each import ask_each, names
from gpushare.cli.ps import name
from gpushare.cli.table import printable

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import Tenant


@shared.command("pause", example='gpushare pause train --reason "card 0 is looked at"')
@names
@click.option("--reason", default="", metavar="TEXT", help="Why; shown by ps and in the history.")
def command(session: Session, containers: tuple[str, ...], reason: str) -> None:
    """Freeze all processes of containers, until `gpushare resume`.

    They keep their memory, and it stays promised to them; their part of the compute goes to the
    others. Work that was given to the card before is done. It holds through restarts of gpushared,
    not of the container. An engine that lets it go on meanwhile is overruled some seconds later. A
    container that is stopped or removed by its engine ends, as otherwise.

    Refused (exit status 3) is who does not run yet, or shares its cgroup with others: a command of
    `gpushare run` without root.
    """
    ask_each(session, containers, lambda one: session.client.pause(one, reason), _line)


def _line(tenant: Tenant) -> str:
    return printable(f"{name(tenant)}: paused")
