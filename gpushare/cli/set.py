# SPDX-License-Identifier: Apache-2.0
"""`gpushare set`: change a running container's quota."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.ps import memory as use
from gpushare.cli.ps import name
from gpushare.cli.table import printable

if TYPE_CHECKING:
    from gpushare.cli.session import Session


@shared.command("set", example="gpushare set train --memory 6GiB")
@click.argument("container")
@click.option("--memory", metavar="SIZE", help="Promised, per card: 4GiB, 512MiB, 4g.")
@click.option("--memory-limit", metavar="SIZE", help="What it may be lent with it; from memory up.")
def command(session: Session, container: str, memory: str | None, memory_limit: str | None) -> None:
    """Change a running container's quota.

    It holds until the container is removed. More than the card has room for is refused (exit status
    3). A container that uses more than it now may keeps what it has, and gets nothing more before
    it has freed enough.
    """
    if memory is None and memory_limit is None:
        raise click.UsageError("say --memory or --memory-limit, e.g. --memory 6GiB")
    tenant = session.client.set(container, memory=memory, memory_limit=memory_limit)
    who = printable(name(tenant))
    lines = [f"{who}: card {card['index']}: {use(card)}" for card in tenant["cards"]]
    lines += map(printable, tenant["warnings"])
    session.show(tenant, lambda: "\n".join(lines))
