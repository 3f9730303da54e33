# SPDX-License-Identifier: Apache-2.0
"""`gpushare resume`: resume paused or frozen containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushare.cli import session as shared
from gpushare.cli.ps import tenant_name
from gpushare.cli.session import containers_argument, for_each_container
from gpushare.cli.text import printable

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import TenantStatus


@shared.command("resume", example="gpushare resume train")
@containers_argument
def command(session: Session, containers: tuple[str, ...]) -> None:
    """Resume containers that were paused, or frozen by the audit.

    The audit freezes a container that is over quota. After a resume it warns first, and freezes the
    container again if it stays over quota. Increase the quota with `gpushare set`, or stop the
    container with `gpushare stop`. To resume a container that an engine paused, use the engine, for
    example `docker unpause`.
    """
    for_each_container(session, containers, session.client.resume, _line)


def _line(tenant: TenantStatus) -> str:
    return printable(f"{tenant_name(tenant)}: resumed")
