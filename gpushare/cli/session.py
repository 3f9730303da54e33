# SPDX-License-Identifier: Apache-2.0
"""What all commands share: --socket and --json, results, errors and exit statuses."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from gpushare.cli.text import printable
from gpushare.client import DEFAULT_SOCKET, BadRequest, Client, RequestRefused, UnknownTenant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpushare.errors import UserError
    from gpushare.protocol import TenantStatus

TableRow = TypeVar("TableRow")

#: The exit statuses of commands.
ERROR: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
DEGRADED: Final = 4

#: How to start a container with a GPU.
TRY: Final = "docker run --runtime=gpushare -e GPUSHARE_MEMORY=4GiB -e GPUSHARE_CORES=30 IMAGE"


@dataclass
class Session:
    """One invocation of the command line."""

    socket: Path = DEFAULT_SOCKET
    json: bool = False

    @property
    def client(self) -> Client:
        """The client of this session's daemon."""
        return Client(self.socket, waits=_say_starting)

    def show(self, data: object, text: Callable[[], str]) -> None:
        """Print `data` with --json, otherwise the result of `text`."""
        click.echo(json.dumps(data, indent=2) if self.json else text())

    def show_rows(
        self, rows: list[TableRow], text: Callable[[list[TableRow]], str], none: str
    ) -> None:
        """Print `rows`; if there are none, print `none` on stderr, which pipes do not read."""
        if rows or self.json:
            self.show(rows, lambda: text(rows))
        else:
            click.echo(none, err=True)


def _say_starting() -> None:
    click.echo("waiting for gpushared to start", err=True)


def _set(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Store an option; one that was not given keeps the value from before the command's name."""
    assert parameter.name is not None
    session = ctx.ensure_object(Session)
    # The environment was already read for the root command; reading it again here would override
    # an option that was given there.
    again = ctx.parent and ctx.get_parameter_source(parameter.name) is ParameterSource.ENVIRONMENT
    if value and not again:
        setattr(session, parameter.name, value)


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json and --socket, which are accepted before and after the command's name."""
    socket = click.option(
        "--socket",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="GPUSHARE_SOCKET",
        expose_value=False,
        callback=_set,
        help=f"Path of the control socket. Default: $GPUSHARE_SOCKET or {DEFAULT_SOCKET}.",
    )
    as_json = click.option(
        "--json", is_flag=True, expose_value=False, callback=_set, help="Print JSON."
    )
    return socket(as_json(function))


def command(
    name: str, *, example: str, cls: type[click.Command] = click.Command, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Turn a function whose first argument is the Session into a command."""

    def wrap(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            session = click.get_current_context().ensure_object(Session)
            return function(session, *args, **kwargs)

        epilog = f"Example: {example}"
        return click.command(name, cls, epilog=epilog, **settings)(shared_options(call))

    return wrap


def print_error(text: str) -> None:
    """Print `text` on stderr, with the prefix `gpushare: ` exactly once."""
    # Refusals by the daemon begin with the prefix already, because engines print them without one.
    # A text may contain a container's name, which its owner chooses.
    lines = "\n".join(printable(line) for line in text.splitlines())
    click.echo(lines if text.startswith("gpushare: ") else f"gpushare: {lines}", err=True)


def report_error(error: UserError) -> int:
    """Print `error` on stderr; return its exit status."""
    print_error(str(error))
    if isinstance(error, UnknownTenant):
        for name in error.candidates:
            click.echo(f"  {printable(name)}", err=True)
    return {RequestRefused: REFUSED, BadRequest: USAGE}.get(type(error), ERROR)


containers_argument = click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True)


def for_each_container(
    session: Session,
    containers: Sequence[str],
    ask: Callable[[str], TenantStatus],
    line: Callable[[TenantStatus], str],
) -> None:
    """Run `ask` for each container and print a line for each; exit with the worst status."""
    tenants: list[TenantStatus] = []
    status = 0
    for container in dict.fromkeys(containers):
        try:
            tenants.append(ask(container))
        except (RequestRefused, UnknownTenant) as error:
            status = max(status, report_error(error))
    if tenants or session.json:
        session.show(tenants, lambda: "\n".join(map(line, tenants)))
    click.get_current_context().exit(status)
