# SPDX-License-Identifier: Apache-2.0
"""The same asked for several containers: what is refused for one does not keep the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli.failure import tell
from gpushare.client import Refused, UnknownTenant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpushare.cli.session import Session
    from gpushare.protocol import Tenant

names = click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True)


def ask_each(
    session: Session,
    containers: Sequence[str],
    ask: Callable[[str], Tenant],
    line: Callable[[Tenant], str],
) -> None:
    """Ask for each of `containers` and show a line of each; the worst status is the exit status."""
    tenants: list[Tenant] = []
    status = 0
    for container in dict.fromkeys(containers):
        try:
            tenants.append(ask(container))
        except (Refused, UnknownTenant) as error:
            status = max(status, tell(error))
    if tenants or session.json:
        session.show(tenants, lambda: "\n".join(map(line, tenants)))
    click.get_current_context().exit(status)
