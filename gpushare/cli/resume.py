# SPDX-License-Identifier: Apache-2.0
"""`gpushare resume`: let containers go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushare.cli import session as shared
from gpushare.cli.each import ask_each, names
from gpushare.cli.ps import name
from gpushare.cli.table import printable

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import Tenant


@shared.command("resume", example="gpushare resume train")
@names
def command(session: Session, containers: tuple[str, ...]) -> None:
    """Let containers go on that `gpushare pause` or the audit froze.

    One that the audit froze is above its quota: it is looked at from the beginning, warned first,
    and frozen again if it stays so. Give it more (`gpushare set`), or have it end
    (`gpushare kick`). What an engine has paused is the engine's: `docker unpause`.
    """
    ask_each(session, containers, session.client.resume, _line)


def _line(tenant: Tenant) -> str:
    return printable(f"{name(tenant)}: goes on")
