# SPDX-License-Identifier: Apache-2.0
"""`gpushare ps`: the containers, what each uses of its quota."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.summary import TRY
from gpushare.cli.table import printable, table
from gpushare.quota.size import format_use

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import Tenant, TenantCard

HEADINGS = (
    *("CONTAINER", "CARD", "MEMORY used/quota", "CORES got/asked"),
    *("POLICY", "THROTTLED", "ISOLATION"),
)


@shared.command("ps", example="gpushare ps -a")
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Also containers that got no GPU, and what was asked and not taken.",
)
def command(session: Session, everything: bool) -> None:
    """List the containers and what each uses of its quota.

    One row for each card that a container has a part of. MEMORY is what it uses, CUDA's own
    contexts with it, of its quota. 5.0/4.0+2.0 GiB has 2 GiB lent to it beside that;
    3.7/2.0 GiB over is given nothing before it fits again. `gpushare why` says where it all is.

    CORES is what it got of the card's compute in the last second, and what it asked for; - is not
    known, or not asked. POLICY says whether cores are set aside.

    THROTTLED is the part of its time that a container waited for its share of the cores. ISOLATION
    says what holds the quota: driver (a limit of NVIDIA's driver itself, and the interposer),
    interposer, audit (it has video or graphics, which go past the interposer and are charged
    afterwards), exclusive (a whole card, nothing to hold), or advice (a host process that could
    walk around it).
    """
    tenants = session.client.tenants(everything=everything)
    render = functools.partial(_render, everything=everything)
    session.show_rows(tenants, render, f"no container has a part of a GPU; start one: {TRY}")


def _render(tenants: list[Tenant], *, everything: bool) -> str:
    """Return the table, a row per container and card; then who got less or nothing, and why."""
    granted = [tenant for tenant in tenants if tenant["state"] != "none"]
    rows = [row(tenant, card) for tenant in granted for card in tenant["cards"]]
    lines = [table(HEADINGS, rows)] if rows else []
    without = [tenant for tenant in tenants if tenant["state"] == "none"]
    told = [f"{name(tenant)} has no GPU: {tenant['why']}" for tenant in without]
    if everything:
        told += [f"{name(tenant)}: {note}" for tenant in granted for note in tenant["notes"]]
    if rows and told:
        lines.append("")
    lines += map(printable, told)
    return "\n".join(lines)


def row(tenant: Tenant, card: TenantCard) -> tuple[str, ...]:
    """Return the cells of one tenant on one card."""
    return (
        name(tenant),
        str(card["index"]),
        memory(card),
        cores(card),
        card["policy"] or "-",
        f"{tenant['throttled'] * 100:.0f} %",
        tenant["isolation"],
    )


def memory(card: TenantCard) -> str:
    """Return "3.9/4.0 GiB", "5.0/4.0+2.0 GiB" with what is lent, "3.7/2.0 GiB over"."""
    shown = format_use(card["used_bytes"], card["memory_bytes"], card["limit_bytes"])
    return f"{shown} over" if card["over_bytes"] else shown


def cores(card: TenantCard) -> str:
    """Return "29.8/30 %"; "-" stands for what is not known or was not asked."""
    got = "-" if card["cores_got"] is None else f"{card['cores_got']:.1f}"
    asked = str(card["cores"]) if card["cores"] else "-"
    return "-" if got == asked == "-" else f"{got}/{asked} %"


def share(tenant: Tenant, card: TenantCard) -> str:
    """Return "fixed-share 30.0 %", "burst-share 30.0 % and more, online"."""
    if card["share"] is None:
        return "a whole card"
    most = "" if card["capped"] else " and more"
    level = "online" if tenant["online"] else f"priority {tenant['priority']}"
    return f"{card['policy']} {card['share']:.1f} %{most}, {level}"


def name(tenant: Tenant) -> str:
    """Return what the user calls a tenant: its engine's name, else the start of its id."""
    return tenant["name"] or tenant["id"][:12]
