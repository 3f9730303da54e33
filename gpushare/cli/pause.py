# SPDX-License-Identifier: Apache-2.0
"""`gpushare pause`: pause containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.ps import tenant_name
from gpushare.cli.session import containers_argument, for_each_container
from gpushare.cli.text import printable

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import TenantStatus


@shared.command("pause", example='gpushare pause train --reason "inspecting card 0"')
@containers_argument
@click.option(
    "--reason", default="", metavar="TEXT", help="Reason, shown by ps and in the history."
)
def command(session: Session, containers: tuple[str, ...], reason: str) -> None:
    """Pause all processes of one or more containers.

    A paused container keeps its memory and its allocation. Other containers get its share of the
    compute. Work that was already submitted to the card completes. The pause lasts until
    `gpushare resume`, also across restarts of gpushared, but not of the container. If the engine
    unpauses the container, gpushare pauses it again some seconds later. The engine can stop or
    remove a paused container as usual.

    A container that is not running yet, or that shares its cgroup with other processes (`gpushare
    run` without root), is refused with exit status 3.
    """
    for_each_container(session, containers, lambda one: session.client.pause(one, reason), _line)


def _line(tenant: TenantStatus) -> str:
    return printable(f"{tenant_name(tenant)}: paused")
