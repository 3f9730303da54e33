# SPDX-License-Identifier: Apache-2.0
"""`gpushare metrics`: the metrics of gpushare-exporter, printed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.session import DEGRADED
from gpushare.errors import UserError
from gpushare.exporter import NO_LIBRARY
from gpushare.exporter.snapshot import SnapshotSource, default_node

if TYPE_CHECKING:
    from gpushare.cli.session import Session


class NoLibrary(UserError):
    """The library that renders the metrics is not installed."""


@shared.command("metrics", example="gpushare metrics --node gpu-7")
@click.option(
    "--node",
    metavar="NAME",
    help="Value of the label node. Default: $NODE_NAME, otherwise the host name.",
)
def command(session: Session, node: str | None) -> None:
    """Print the Prometheus metrics once.

    The output is what gpushare-exporter serves, for example for the textfile collector of
    node_exporter. docs/reference/metrics.md lists the metrics. --json prints the figures as
    gpushared reports them.

    If gpushared does not respond, gpushare_up is 0 and the exit status is 4.
    """
    if session.json:
        figures = session.client.metrics()
        session.show(vars(figures), str)
        return
    source = SnapshotSource(session.socket, node or default_node())
    try:
        from gpushare.exporter.exposition import expose  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NoLibrary(NO_LIBRARY) from error
    text, _ = expose(source.snapshot())
    click.echo(text, nl=False)
    if source.error:
        click.echo(f"gpushare: {source.error}", err=True)
        click.get_current_context().exit(DEGRADED)
