# SPDX-License-Identifier: Apache-2.0
"""`gpushare ps`: the containers, with their usage and quotas."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.session import TRY
from gpushare.cli.text import printable, table
from gpushare.quota.size import format_use

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import TenantCard, TenantStatus

HEADINGS = (
    *("CONTAINER", "CARD", "MEMORY USED/QUOTA", "CORES USED/QUOTA"),
    *("POLICY", "THROTTLED", "ISOLATION"),
)
WIDE = (
    *("CORES 10s", "CORES 60s", "SHARE", "CLASS", "GATE"),
    *("WINDOWS", "OVERRUNS", "FORCED LAUNCHES", "HUNG"),
)
#: The state of a container that does not run, by its cause; the first one that applies.
RUN_STATES: Final = {
    "stop": "stopping",
    "operator": "paused",
    "audit": "frozen",
    "unknown": "frozen",
}


@shared.command("ps", example="gpushare ps -a")
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Also show containers without a GPU, and changes to requests.",
)
@click.option(
    "--wide", is_flag=True, help="Also show averages over 10 s and 60 s, and gate counters."
)
def command(session: Session, everything: bool, wide: bool) -> None:
    """List containers and their usage.

    There is one row for each card of a container. MEMORY is the used memory, including CUDA
    contexts, and the quota. With 5.0/4.0+2.0 GiB, the container can currently burst to 2 GiB above
    its quota. With 3.7/2.0 GiB over quota, its allocations fail until its usage fits the quota. For
    a breakdown, run `gpushare why`.

    CORES is the share of the card's compute that the container used in the last second, and the
    share that it requested; - means none or unknown. ~97 is the driver's figure, in whole percent:
    gpushare does not meter a container that is alone on its card or has a whole card. ? means that
    the scheduler does not respond. For a stopped container the column shows paused (`gpushare
    pause`), frozen (by the audit) or stopping (`gpushare stop`). POLICY is the policy in effect,
    which `gpushare card policy` can override.

    THROTTLED is the fraction of the last second that the container spent waiting for the card.
    --wide adds the cores used over 10 s and 60 s; SHARE, the guaranteed share, with + if the
    container may use more; CLASS, online, or offline with its priority; the current state of the
    launch GATE, its WINDOWS, its OVERRUNS (work that did not end in time), FORCED LAUNCHES (let
    through after waiting too long), and whether the work is HUNG.

    ISOLATION is how the quota is enforced: driver (by a limit in the NVIDIA driver, and the
    interposer library), interposer, audit (the container has video or graphics, which bypass the
    interposer library and are charged later), exclusive (a whole card, without a quota), or advice
    (a host process, which can bypass its quota).
    """
    tenants = session.client.tenants(everything=everything)
    render = functools.partial(_render, everything=everything, wide=wide)
    session.show_rows(tenants, render, f"no container uses a GPU. To start one, run: {TRY}")


def _render(tenants: list[TenantStatus], *, everything: bool, wide: bool) -> str:
    """Return the table, with a row for each container and card, and the messages below it."""
    granted = [tenant for tenant in tenants if tenant["state"] != "none"]
    rows = [
        row(tenant, card) + (_wide(tenant, card) if wide else ())
        for tenant in granted
        for card in tenant["cards"]
    ]
    lines = [table((*HEADINGS, *WIDE) if wide else HEADINGS, rows)] if rows else []
    without = [tenant for tenant in tenants if tenant["state"] == "none"]
    messages = [warning for tenant in granted for warning in tenant["warnings"]]
    messages += [f"{tenant_name(tenant)} has no GPU: {tenant['reason']}" for tenant in without]
    if everything:
        messages += [
            f"{tenant_name(tenant)}: {note}" for tenant in granted for note in tenant["notes"]
        ]
    if rows and messages:
        lines.append("")
    lines += map(printable, messages)
    return "\n".join(lines)


def row(tenant: TenantStatus, card: TenantCard) -> tuple[str, ...]:
    """Return the cells of one tenant on one card."""
    return (
        tenant_name(tenant),
        str(card["index"]),
        memory(card),
        run_state(tenant) or cores(card),
        card["policy"] or "-",
        throttled(card),
        tenant["isolation"],
    )


def memory(card: TenantCard) -> str:
    """Return "3.9/4.0 GiB", "5.0/4.0+2.0 GiB" with burst, "3.7/2.0 GiB over quota"."""
    shown = format_use(card["used_bytes"], card["quota_bytes"], card["current_limit_bytes"])
    return f"{shown} over quota" if card["over_limit_bytes"] else shown


def run_state(tenant: TenantStatus) -> str:
    """Return "stopping", "paused" (by an operator), "frozen" (by the audit), or "" if it runs."""
    by = {intervention["by"] for intervention in tenant["interventions"]}
    return next((state for one, state in RUN_STATES.items() if one in by), "")


def cores(card: TenantCard) -> str:
    """Return "29.8/30 %", "~97/30 %"; "-" means unknown or not requested."""
    shown = cores_used(card, "1s")
    quota = str(card["cores"]) if card["cores"] else "-"
    return "-" if shown == quota == "-" else f"{shown}/{quota} %"


def cores_used(card: TenantCard, window: str) -> str:
    """Return "29.8"; "~97" for a driver's figure; "?" if the scheduler does not respond."""
    usage = card["compute"]
    figure = usage["cores_used"][window]
    if figure is None:
        return "-" if usage["gate"] in {"", "open"} or usage["cores_source"] else "?"
    return f"~{figure:.0f}" if usage["cores_source"] == "driver" else f"{figure:.1f}"


def throttled(card: TenantCard, window: str = "1s") -> str:
    """Return "12 %"."""
    fraction = card["compute"]["throttled"][window]
    return "-" if fraction is None else f"{fraction * 100:.0f} %"


def _wide(tenant: TenantStatus, card: TenantCard) -> tuple[str, ...]:
    """Return the cells of --wide."""
    usage = card["compute"]
    share = "-" if card["share_percent"] is None else f"{card['share_percent']:.1f} %"
    return (
        cores_used(card, "10s"),
        cores_used(card, "60s"),
        share if card["is_capped"] or card["share_percent"] is None else f"{share}+",
        latency_class(tenant),
        usage["gate"] or "-",
        *(str(usage["windows"]), str(usage["overruns"]), str(usage["forced_launches"])),
        "yes" if usage["is_hung"] else "no",
    )


def latency_class(tenant: TenantStatus) -> str:
    """Return "online", "offline 5"."""
    return "online" if tenant["online"] else f"offline {tenant['priority']}"


def share(tenant: TenantStatus, card: TenantCard) -> str:
    """Return "fixed-share 30.0 %", "burst-share 30.0 % and more, offline 5", "-" while paused."""
    if card["share_percent"] is None:
        return "a whole card" if tenant["isolation"] == "exclusive" else "-"
    more = "" if card["is_capped"] else " and more"
    return f"{card['policy']} {card['share_percent']:.1f} %{more}, {latency_class(tenant)}"


def tenant_name(tenant: TenantStatus) -> str:
    """Return the engine's name of a tenant, or the start of its id."""
    return tenant["name"] or tenant["id"][:12]
