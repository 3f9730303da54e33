# SPDX-License-Identifier: Apache-2.0
"""`gpushare set`: change a running container's quota."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.ps import name
from gpushare.cli.table import printable
from gpushare.quota.size import format_use

if TYPE_CHECKING:
    from gpushare.cli.session import Session


@shared.command("set", example="gpushare set train --memory 6GiB")
@click.argument("container")
@click.option("--memory", required=True, metavar="SIZE", help="Per card: 4GiB, 512MiB, 4g.")
def command(session: Session, container: str, memory: str) -> None:
    """Change a running container's quota.

    It holds until the container is removed. Refused (exit status 3): more than the card has room
    for, less than is in use.
    """
    tenant = session.client.set(container, memory=memory)
    who = printable(name(tenant))
    lines = [
        f"{who}: card {card['index']}: {format_use(card['used_bytes'], card['memory_bytes'])}"
        for card in tenant["cards"]
    ]
    session.show(tenant, lambda: "\n".join(lines))
