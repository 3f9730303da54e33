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
WIDE = (
    *("GOT 10s", "GOT 60s", "SHARE", "CLASS", "GATE"),
    *("WINDOWS", "OVERRUNS", "FORCED", "HUNG"),
)


@shared.command("ps", example="gpushare ps -a")
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Also containers that got no GPU, and what was asked and not taken.",
)
@click.option("--wide", is_flag=True, help="Also ten seconds, sixty, and what the gate counted.")
def command(session: Session, everything: bool, wide: bool) -> None:
    """List the containers and what each uses of its quota.

    One row for each card that a container has a part of. MEMORY is what it uses, CUDA's own
    contexts with it, of its quota. 5.0/4.0+2.0 GiB has 2 GiB lent to it beside that;
    3.7/2.0 GiB over is given nothing before it fits again. `gpushare why` says where it all is.

    CORES is what it got of the card's compute in the last second, and what it asked for; - is not
    asked, or not known. ~97 is the driver's figure for its processes, in whole percent: nothing is
    counted of who has a card alone, or all of it. ? is a scheduler that does not answer. In its
    place stands paused (`gpushare pause`), frozen (by the audit) or ending (`gpushare kick`).
    The POLICY is the one that holds on the card: `gpushare card policy` may have set it.

    THROTTLED is the part of the last second in which it wanted the card and did not have it.
    --wide adds GOT over ten and sixty seconds; SHARE, what it gets while all want theirs, + where
    it may have more; CLASS, online, or offline and its priority; the GATE as it is now, its
    WINDOWS, the OVERRUNS whose work did not end in time, launches that were FORCED through after
    waiting too long, and whether its work is HUNG.

    ISOLATION
    says what holds the quota: driver (a limit of NVIDIA's driver itself, and the interposer),
    interposer, audit (it has video or graphics, which go past the interposer and are charged
    afterwards), exclusive (a whole card, nothing to hold), or advice (a host process that could
    walk around it).
    """
    tenants = session.client.tenants(everything=everything)
    render = functools.partial(_render, everything=everything, wide=wide)
    session.show_rows(tenants, render, f"no container has a part of a GPU; start one: {TRY}")


def _render(tenants: list[Tenant], *, everything: bool, wide: bool) -> str:
    """Return the table, a row per container and card; then what is wrong, who got less, and why."""
    granted = [tenant for tenant in tenants if tenant["state"] != "none"]
    rows = [
        row(tenant, card) + (_wide(tenant, card) if wide else ())
        for tenant in granted
        for card in tenant["cards"]
    ]
    lines = [table((*HEADINGS, *WIDE) if wide else HEADINGS, rows)] if rows else []
    without = [tenant for tenant in tenants if tenant["state"] == "none"]
    told = [warning for tenant in granted for warning in tenant["warnings"]]
    told += [f"{name(tenant)} has no GPU: {tenant['why']}" for tenant in without]
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
        stopped(tenant) or cores(card),
        card["policy"] or "-",
        throttled(card),
        tenant["isolation"],
    )


def memory(card: TenantCard) -> str:
    """Return "3.9/4.0 GiB", "5.0/4.0+2.0 GiB" with what is lent, "3.7/2.0 GiB over"."""
    shown = format_use(card["used_bytes"], card["memory_bytes"], card["limit_bytes"])
    return f"{shown} over" if card["over_bytes"] else shown


def stopped(tenant: Tenant) -> str:
    """Return "paused" (by an operator), "frozen" (by the audit), "ending", or "" of who runs."""
    words = {held["by"] for held in tenant["held"]}
    named = (("kill", "ending"), ("operator", "paused"), ("audit", "frozen"))
    return next((word for by, word in named if by in words), "")


def cores(card: TenantCard) -> str:
    """Return "29.8/30 %", "~97/30 %"; "-" stands for what is not known or was not asked."""
    shown = got(card, "1s")
    asked = str(card["cores"]) if card["cores"] else "-"
    return "-" if shown == asked == "-" else f"{shown}/{asked} %"


def got(card: TenantCard, window: str) -> str:
    """Return "29.8"; "~97" where it is the driver's; "?" where the scheduler does not answer."""
    spent = card["spent"]
    figure = spent["got"][window]
    if figure is None:
        return "-" if spent["gate"] in {"", "open"} or spent["source"] else "?"
    return f"~{figure:.0f}" if spent["source"] == "driver" else f"{figure:.1f}"


def throttled(card: TenantCard, window: str = "1s") -> str:
    """Return "12 %"."""
    part = card["spent"]["throttled"][window]
    return "-" if part is None else f"{part * 100:.0f} %"


def _wide(tenant: Tenant, card: TenantCard) -> tuple[str, ...]:
    """Return the cells of --wide."""
    spent = card["spent"]
    share = "-" if card["share"] is None else f"{card['share']:.1f} %"
    return (
        got(card, "10s"),
        got(card, "60s"),
        share if card["capped"] or card["share"] is None else f"{share}+",
        level(tenant),
        spent["gate"] or "-",
        *(str(spent["windows"]), str(spent["overruns"]), str(spent["forced"])),
        "yes" if spent["hung"] else "no",
    )


def level(tenant: Tenant) -> str:
    """Return "online", "offline 5"."""
    return "online" if tenant["online"] else f"offline {tenant['priority']}"


def share(tenant: Tenant, card: TenantCard) -> str:
    """Return "fixed-share 30.0 %", "burst-share 30.0 % and more, offline 5"."""
    if card["share"] is None:
        return "a whole card"
    most = "" if card["capped"] else " and more"
    return f"{card['policy']} {card['share']:.1f} %{most}, {level(tenant)}"


def name(tenant: Tenant) -> str:
    """Return what the user calls a tenant: its engine's name, else the start of its id."""
    return tenant["name"] or tenant["id"][:12]
