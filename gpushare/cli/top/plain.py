# SPDX-License-Identifier: Apache-2.0
"""The same without a terminal: --once as text, --json as documents."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from gpushare.cli.table import printable
from gpushare.cli.top.draw import header, meters, table_lines
from gpushare.cli.top.picture import look
from gpushare.cli.top.text import to_ascii
from gpushare.cli.top.view import rows
from gpushare.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.top.draw import Line
    from gpushare.cli.top.picture import Picture
    from gpushare.cli.top.view import View
    from gpushare.client import Client

_METERS = 100  # columns of a card's line


def text(picture: Picture, view: View, *, unicode: bool) -> str:
    """Return what the screen would show, with all columns and rows."""
    lines = [_plain(line) for line in _lines(picture, view, unicode)]
    said = {container.key: container.warnings for container in picture.containers}
    warnings = [printable(warning) for each in said.values() for warning in each]
    lines += ["", *warnings] if warnings else []
    return "\n".join(line if unicode else to_ascii(line) for line in lines)


def stream(client: Client, interval: float) -> None:
    """Print a document each `interval` seconds, one a line, until it is interrupted."""
    try:
        while True:
            begun = time.monotonic()
            try:
                document = look(client).document
            except UserError as error:
                document = {"time": time.time(), "error": str(error)}
            click.echo(json.dumps(document))
            time.sleep(max(0.0, interval - (time.monotonic() - begun)))
    except KeyboardInterrupt:
        return


def _lines(picture: Picture, view: View, unicode: bool) -> Iterator[Line]:
    yield header(picture, None)
    yield from meters(picture.cards, _METERS, unicode=unicode)
    yield ()
    yield from table_lines(rows(picture, view), None, unicode, view)


def _plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()
