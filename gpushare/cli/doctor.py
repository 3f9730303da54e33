# SPDX-License-Identifier: Apache-2.0
"""`gpushare doctor`: what is well on this machine, what is not, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from gpushare import checks
from gpushare.cli import session as shared
from gpushare.cli.failure import DEGRADED
from gpushare.cli.table import printable

if TYPE_CHECKING:
    from gpushare.cli.session import Session

COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@shared.command("doctor", example="gpushare doctor")
def command(session: Session) -> None:
    """Check this machine; each line says how to put it right.

    The exit status is 4 when a check fails; a warning changes nothing.
    """
    found = []
    for check in checks.run(session.client):
        found.append(check)
        if not session.json:
            word = click.style(f"{check.level:<6}", fg=COLOURS[check.level])
            fix = f"; {check.fix}" if check.fix else ""
            click.echo(word + printable(check.text + fix))
    if session.json:
        session.show([asdict(check) for check in found], str)
    if any(check.level == "fail" for check in found):
        click.get_current_context().exit(DEGRADED)
