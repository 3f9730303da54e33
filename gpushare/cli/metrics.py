# SPDX-License-Identifier: Apache-2.0
"""`gpushare metrics`: what gpushare-exporter serves, once."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.failure import DEGRADED
from gpushare.errors import UserError
from gpushare.exporter import NO_LIBRARY
from gpushare.exporter.snapshot import Source

if TYPE_CHECKING:
    from gpushare.cli.session import Session


class NoLibrary(UserError):
    """The library that writes the text is not installed."""


@shared.command("metrics", example="gpushare metrics --node gpu-7")
@click.option("--node", metavar="NAME", help="The label node of every series, else this host's.")
def command(session: Session, node: str | None) -> None:
    """Print the metrics once, as gpushare-exporter serves them.

    For the textfile collector of node_exporter, and to look at. What there is:
    docs/reference/metrics.md. With --json the figures as gpushared says them.

    Where gpushared does not answer gpushare_up is 0, which is printed, and the exit status is 4.
    """
    if session.json:
        figures = session.client.metrics()
        session.show(vars(figures), str)
        return
    source = Source(session.socket, node or socket.gethostname())
    try:
        from gpushare.exporter.exposition import expose  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NoLibrary(NO_LIBRARY) from error
    text, _ = expose(source.snapshot())
    click.echo(text, nl=False)
    if source.why:
        click.echo(f"gpushare: {source.why}", err=True)
        click.get_current_context().exit(DEGRADED)
