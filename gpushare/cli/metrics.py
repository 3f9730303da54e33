# SPDX-License-Identifier: Apache-2.0
"""`gpushare metrics`: the metrics of gpushare-exporter, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.exporter.exposition import expose
from gpushare.exporter.metric_family import SnapshotSource

if TYPE_CHECKING:
    from gpushare.cli.session import Session


@shared.command("metrics")
@click.option(
    "--node",
    metavar="NAME",
    default="",
    help="Value of the label node. Default: $NODE_NAME, kubernetes.node of gpushare.yaml, or the "
    "host name.",
)
def metrics(session: Session, node: str) -> None:
    """Print the Prometheus metrics once.

    The output is what gpushare-exporter serves, for example for the textfile collector of
    node_exporter. docs/reference/metrics.md lists the metrics. --json prints the figures as
    gpushared reports them.

    If gpushared does not respond, gpushare_up is 0 and the exit status is 1.
    """
    if session.json:
        figures = session.client.metrics()
        session.show(vars(figures), str)
        return
    source = SnapshotSource(session.socket, node)
    text, _ = expose(source.snapshot())
    click.echo(text, nl=False)
    if source.error is not None:
        raise source.error
