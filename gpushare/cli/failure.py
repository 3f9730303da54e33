# SPDX-License-Identifier: Apache-2.0
"""What went wrong, as a sentence on stderr and an exit status."""

from __future__ import annotations

from typing import Final

import click

from gpushare.cli.table import printable
from gpushare.client import BadRequest, Refused, UnknownTenant
from gpushare.errors import UserError

ERROR: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
DEGRADED: Final = 4


def say(text: str) -> None:
    """Write `text` on stderr, once under our name."""
    # The daemon's refusals begin with our name where an engine shows them without any other.
    # A container's name is in some of them, and its owner's choice.
    lines = "\n".join(printable(line) for line in text.splitlines())
    click.echo(lines if text.startswith("gpushare: ") else f"gpushare: {lines}", err=True)


def tell(error: UserError) -> int:
    """Say what `error` does, and return the exit status that goes with it."""
    say(str(error))
    if isinstance(error, UnknownTenant):
        for name in error.candidates:
            click.echo(f"  {printable(name)}", err=True)
    return {Refused: REFUSED, BadRequest: USAGE}.get(type(error), ERROR)
