# SPDX-License-Identifier: Apache-2.0
"""`gpushare dashboard`: web pages with the cards, the containers and their figures over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpushare.cli import session as shared
from gpushare.dashboard import DEFAULT
from gpushare.history import FOLDER

if TYPE_CHECKING:
    from gpushare.cli.session import Session

_FILE = click.Path(dir_okay=False, path_type=Path)


@shared.command("dashboard")
@click.option(
    "--listen",
    metavar="ADDRESS",
    default=DEFAULT,
    show_default=True,
    help="HOST:PORT or unix:/PATH. All but loopback takes --token-file or --client-ca.",
)
@click.option(
    "--token-file",
    type=_FILE,
    metavar="FILE",
    help="File with the token that clients send. Default: a new one in the printed address.",
)
@click.option(
    "--tls-certificate",
    "certificate",
    type=_FILE,
    metavar="FILE",
    help="Certificate (PEM), for HTTPS.",
)
@click.option(
    "--tls-key", "key", type=_FILE, metavar="FILE", help="The key of the certificate (PEM)."
)
@click.option(
    "--client-ca",
    type=_FILE,
    metavar="FILE",
    help="Answer only clients with a certificate of this CA (PEM), without a token.",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    metavar="NAME",
    help="A name of this server that clients use, besides the host name. Can be repeated.",
)
def command(session: Session, listen: str, **others: Any) -> None:
    """Serve web pages with cards, containers, graphs and reports.

    The pages show what gpushare ls and ps show, and the metrics history of this node. They change
    nothing, and load nothing from other servers. The command prints the address to open, and serves
    until it is interrupted.

    Every user of this machine can connect to a loopback port, so the address contains a token.
    A Unix socket (--listen unix:/PATH) takes no token: it is open to the same users as the control
    socket (read_group in gpushare.yaml). To open it on another computer, run there:
    ssh -L 9465:/PATH NODE, and open http://localhost:9465.
    """
    from gpushare import config as configuration  # noqa: PLC0415 - reads YAML
    from gpushare.dashboard import server  # noqa: PLC0415
    from gpushare.listen_address import parse_address  # noqa: PLC0415

    config = configuration.load(session.config_file())
    options = server.DashboardOptions(
        listen=parse_address(listen, DEFAULT),
        socket=session.socket,
        history=config.state_dir / FOLDER,
        prices=config.prices,
        **others,
    )

    server.serve(options, lambda address: session.show({"address": address}, lambda: address))
