# SPDX-License-Identifier: Apache-2.0
"""What every command shares: the socket, --json, how an answer is shown."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from gpushare.client import DEFAULT_SOCKET, Client

if TYPE_CHECKING:
    from collections.abc import Callable

Row = TypeVar("Row")


@dataclass
class Session:
    """One call of the command line."""

    socket: Path = DEFAULT_SOCKET
    json: bool = False

    @property
    def client(self) -> Client:
        """The daemon of this session."""
        return Client(self.socket, waits=_say_starting)

    def show(self, data: object, text: Callable[[], str]) -> None:
        """Print `data` as JSON when that is asked for, else what `text` makes of it."""
        click.echo(json.dumps(data, indent=2) if self.json else text())

    def show_rows(self, rows: list[Row], text: Callable[[list[Row]], str], none: str) -> None:
        """Show `rows`; where there are none `none` says so on stderr, which no pipe reads."""
        if rows or self.json:
            self.show(rows, lambda: text(rows))
        else:
            click.echo(none, err=True)


def _say_starting() -> None:
    click.echo("gpushared is starting; waiting for it", err=True)


def _set(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep what was given; what was not leaves what stood before the command's name."""
    assert parameter.name is not None
    session = ctx.ensure_object(Session)
    # The environment was read before the command's name; here it would undo what stood there.
    again = ctx.parent and ctx.get_parameter_source(parameter.name) is ParameterSource.ENVIRONMENT
    if value and not again:
        setattr(session, parameter.name, value)


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json and --socket, which may stand before or after the command's name."""
    socket = click.option(
        "--socket",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="GPUSHARE_SOCKET",
        expose_value=False,
        callback=_set,
        help=f"The daemon's control socket, else GPUSHARE_SOCKET, else {DEFAULT_SOCKET}.",
    )
    as_json = click.option(
        "--json", is_flag=True, expose_value=False, callback=_set, help="Print JSON."
    )
    return socket(as_json(function))


def command(
    name: str, *, example: str, cls: type[click.Command] = click.Command, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function whose first argument is the Session."""

    def wrap(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            session = click.get_current_context().ensure_object(Session)
            return function(session, *args, **kwargs)

        epilog = f"Example: {example}"
        return click.command(name, cls, epilog=epilog, **settings)(shared_options(call))

    return wrap
