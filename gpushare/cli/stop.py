# SPDX-License-Identifier: Apache-2.0
"""`gpushare stop`: stop containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare import protocol
from gpushare.cli import session as shared
from gpushare.cli.ps import tenant_name
from gpushare.cli.session import containers_argument, for_each_container
from gpushare.cli.text import printable

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import TenantStatus


@shared.command("stop", example="gpushare stop train --timeout 30 --reason 'draining card 0'")
@containers_argument
@click.option(
    "--signal",
    type=click.Choice(protocol.STOP_SIGNALS),
    default="TERM",
    show_default=True,
    help="Signal to send to the container's first process. KILL is sent to all processes.",
)
@click.option(
    "-t",
    "--timeout",
    type=click.IntRange(0, protocol.STOP_TIMEOUT_MAX_SECONDS),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Seconds to wait before all processes are killed.",
)
@click.option(
    "--reason", default="", metavar="TEXT", help="Reason, recorded in the log and the history."
)
def command(
    session: Session, containers: tuple[str, ...], signal: str, timeout: int, reason: str
) -> None:
    """Stop one or more containers.

    gpushare sends a signal to the first process of each container, and SIGKILL to all processes
    after the timeout. A paused or frozen container is resumed with the signal. A second stop does
    not extend the timeout of the first one. The command returns at once; `gpushare ps` lists the
    containers until they have exited. The engine is not involved and starts the container again if
    its restart policy says so. To keep it stopped, stop it in the engine (`docker stop`, `kubectl
    delete`).

    A container that is not running yet, or that shares its cgroup with other processes (`gpushare
    run` without root), is refused with exit status 3.
    """
    for_each_container(
        session,
        containers,
        lambda one: session.client.stop(one, signal, timeout, reason),
        lambda tenant: _line(tenant, signal, timeout),
    )


def _line(tenant: TenantStatus, signal: str, timeout: int) -> str:
    if signal == "KILL" or not timeout:
        return printable(f"{tenant_name(tenant)}: killed")
    return printable(f"{tenant_name(tenant)}: sent SIG{signal}, will be killed in {timeout} s")
