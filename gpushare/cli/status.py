# SPDX-License-Identifier: Apache-2.0
"""`gpushare ls` and `ps`: the cards and the containers, with their capacity and usage."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.session import TRY
from gpushare.cli.text import local_time, printable, terminal_table
from gpushare.errors import ExitStatus, UserError
from gpushare.old_drivers import describe_old_driver
from gpushare.protocol.rows import RUN_STATES
from gpushare.quota.size import format_size, format_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpushare.cli.session import Session
    from gpushare.client import Client
    from gpushare.protocol import DaemonStatus
    from gpushare.protocol.queue import QueueEntry
    from gpushare.protocol.rows import TenantCard, TenantStatus

    ListedCard = Mapping[str, Any]  # CardRow, ClusterCard, or UnifiedCard, which has no figures

LS_HEADINGS = (
    "CARD",
    "MODEL",
    "MEMORY",
    "ALLOCATED",
    "BURST",
    "NON-TENANT",
    "AVAILABLE",
    "CORES",
    "TENANTS",
    "MODE",
    "HEALTH",
)
#: The columns that are left out if the terminal is too narrow, in this order.
LS_DROPPED: Final = (
    "NON-TENANT",
    "BURST",
    "TENANTS",
    "ALLOCATED",
    "MODEL",
    "CORES",
    "MEMORY",
    "MODE",
)


@shared.command("ls")
def ls(session: Session) -> None:
    """List the cards and their available capacity.

    MEMORY is the card's memory for programs. ALLOCATED is the sum of the containers' quotas, used
    or not. BURST (shown only if there is any) is memory that containers may use, or still hold,
    above their quotas. NON-TENANT is the memory of processes that belong to no container (--json
    lists them). AVAILABLE is what a new container can request. It includes unused burst memory.
    It is - for a card on which gpushare places no new containers: cordoned, or with a problem.

    CORES is the allocated share of the compute. TENANTS is the number of containers on the card,
    and the maximum. MODE is unused, shared, or exclusive (one container has the whole card), with
    "cordoned" if gpushare places no new containers on it (see `gpushare card ls`), or unified (a
    card without memory of its own, which gpushare cannot share). HEALTH is ok, or the problem. If a
    card has a problem, the exit status is 4. A line below names each claim of Kubernetes whose part
    of a card no container uses, each unified card, and a driver that is too old to be supported.

    On a terminal that is too narrow, columns are left out in this order, and the last line names
    them: NON-TENANT, BURST, TENANTS, ALLOCATED, MODEL, CORES, MEMORY, MODE. If that does not
    suffice, the longest texts are shortened. A pipe gets all columns. Colors are used only on a
    terminal, and not if NO_COLOR is set.
    """
    client = session.client
    of_node, status = client.cards(), client.status()
    cards: list[ListedCard] = [*of_node, *status.get("unified_cards", ())]
    none = "there is no card. To find the cause, run gpushare doctor."
    session.show_rows(
        cards,
        lambda rows: "\n".join([_cards(rows), *_idle_claims(rows, client), *_below(status)]),
        none,
    )
    if any(card["health"] != "ok" for card in cards):
        click.get_current_context().exit(ExitStatus.DEGRADED)


def _idle_claims(cards: list[ListedCard], client: Client) -> Iterator[str]:
    """Yield a line for each part of a card that a claim of Kubernetes has and no container uses."""
    numbers = {card["uuid"]: card["index"] for card in cards}
    for claim in client.claims():
        for device in () if claim["tenants"] else claim["devices"]:
            yield printable(
                f"claim {claim['namespace']}/{claim['name']} has "
                f"{format_size(device['memory_bytes'])} and {device['cores']} % of card "
                f"{numbers.get(device['card'], device['card'])} and no container"
            )


def _below(status: DaemonStatus) -> Iterator[str]:
    """Yield a line for each card that cannot be shared, and for an old driver."""
    for card in status.get("unified_cards", ()):
        yield printable(card["schedulable_reason"])
    if known := describe_old_driver(status["driver_version"]):
        yield printable(known)


def _cards(cards: list[ListedCard]) -> str:
    headings = card_headings(cards)
    rows = [card_cells(card, headings) for card in cards]
    return terminal_table(headings, rows, LS_DROPPED, colour)


def colour(heading: str, cell: str) -> str:
    """Return the color of a cell of `ls`, `ps` or `card ls`; "": none."""
    if heading == "HEALTH":
        return {"ok": "green", "-": ""}.get(cell, "red")
    if cell.endswith("over quota") or (heading, cell) == ("HUNG", "yes"):
        return "red"
    needs_attention = {
        "MODE": cell.endswith(",cordoned"),
        "CORDONED": cell != "no",
        "CORES USED/QUOTA": cell in RUN_STATES.values() or cell.startswith(("?", "evict")),
        "ISOLATION": cell == "advisory",
    }
    return "yellow" if needs_attention.get(heading) else ""


def card_headings(cards: Sequence[ListedCard]) -> tuple[str, ...]:
    """Return the columns of a table of `cards`."""
    has_burst = any(card.get("burst_granted_bytes") for card in cards)
    return tuple(name for name in LS_HEADINGS if has_burst or name != "BURST")


def card_cells(card: ListedCard, headings: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of a card in these columns; "-" is unknown."""
    tenants = (card.get("tenants"), card.get("max_tenants"))
    free = card.get("cores_available")
    cells = {
        "CARD": str(card["index"]),
        "MODEL": card["model"] or "-",
        "MEMORY": _size(card.get("memory_bytes")),
        "ALLOCATED": _size(card.get("allocated_bytes")),
        "BURST": _size(card.get("burst_granted_bytes")),
        "NON-TENANT": _size(card.get("non_tenant_bytes")),
        "AVAILABLE": available(card),
        "CORES": "-" if free is None else f"{100 - free} %",
        "TENANTS": "-" if tenants == (None, None) else f"{tenants[0]}/{tenants[1]}",
        "MODE": mode(card),
        "HEALTH": card["health"] or "-",
    }
    return tuple(cells[name] for name in headings)


def available(card: ListedCard) -> str:
    """Return what a new container can request; "-": unknown, or the card takes none."""
    is_closed = card.get("cordoned") or card["health"] not in {"", "ok"}
    return "-" if is_closed else _size(card.get("available_bytes"))


def _size(size: int | None) -> str:
    return "-" if size is None else format_size(size)


def mode(card: ListedCard) -> str:
    """Return how a card is used, for example `shared,cordoned`."""
    words = {"trusted": card.get("mps_trusted"), "cordoned": card.get("cordoned")}
    return ",".join((card["mode"] or "-", *(word for word, holds in words.items() if holds)))


PS_HEADINGS = (
    "CONTAINER",
    "CARD",
    "MEMORY USED/QUOTA",
    "CORES USED/QUOTA",
    "POLICY",
    "THROTTLED",
    "ISOLATION",
)
#: The column that is there if a container has a time limit.
ENDS: Final = "STOPPED AT"
#: The columns that are left out if the terminal is too narrow, in this order.
PS_DROPPED: Final = ("THROTTLED", "POLICY", "CARD", "CORES USED/QUOTA")
WIDE = (
    "CORES 10s",
    "CORES 60s",
    "SHARE",
    "CLASS",
    "GATE",
    "WINDOWS",
    "OVERRUNS",
    "FORCED LAUNCHES",
    "HUNG",
)


@shared.command("ps")
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
def ps(session: Session, everything: bool, wide: bool) -> None:
    """List containers and their usage.

    There is one row for each card of a container. MEMORY is the used memory, including CUDA
    contexts, and the quota. With 5.0/4.0+2.0 GiB, the container can currently burst to 2 GiB above
    its quota. With 3.7/2.0 GiB over quota, its allocations fail until its usage fits the quota. For
    a breakdown, run `gpushare why`.

    CORES is the share of the card's compute that the container used in the last second, and the
    share that it requested; - means none or unknown. ~97 is the driver's figure, in whole percent:
    gpushare does not meter a container that is alone on its card or has a whole card. ? means that
    the scheduler does not respond. For a stopped container the column shows paused (`gpushare
    pause`, `docker pause`, or idle.action), frozen (by the audit) or stopping (`gpushare stop`);
    for a container whose memory is in host memory, since when it is evicted, with (waits) if its
    program waits for its restore (`gpushare evict`); for a container that holds memory without
    using its cards, since when it is idle (idle in gpushare.yaml). POLICY is the policy in effect,
    which `gpushare card policy` can override.

    STOPPED AT is there if a container has a time limit (time-limit). Below the table are the starts
    that wait for room (gpushare queue).

    THROTTLED is the fraction of the last second that the container spent waiting for the card.
    --wide adds the cores used over 10 s and 60 s; SHARE, the guaranteed share, with + if the
    container may use more; CLASS, online, or offline with its priority; the current state of the
    launch GATE, its WINDOWS, its OVERRUNS (work that did not end in time), FORCED LAUNCHES (let
    through after waiting too long), and whether the work is HUNG.

    ISOLATION is how the quota is enforced: driver (by a limit in the NVIDIA driver, and the
    interposer library), interposer, audited (the container has video or graphics, which bypass the
    interposer library and are charged later), exclusive (a whole card, without a quota), mps (by
    the card's MPS server), or advisory (a host process, which can bypass its quota). For a
    container with a remote GPU, it is the server, and CORES is since when. Its quota and figures
    are on the server's node.

    On a terminal that is too narrow, columns are left out in this order, and the last line names
    them: THROTTLED, POLICY, CARD, CORES. If that does not suffice, the longest texts are shortened.
    --wide, and a pipe, get all columns. Colors are used only on a terminal, and not if NO_COLOR is
    set.
    """
    tenants = session.client.tenants(everything=everything)
    waiting = [] if session.json else waiting_starts(session.client)
    render = functools.partial(_render, everything=everything, wide=wide, waiting=waiting)
    if not tenants and waiting:
        session.show(tenants, lambda: render(tenants))
        return
    session.show_rows(tenants, render, f"no container uses a GPU. To start one, run: {TRY}")


def waiting_starts(client: Client) -> list[QueueEntry]:
    """Return the starts that wait; none from a gpushared without a queue."""
    try:
        queue = client.queue()
        return [one for one in queue if one["state"] == "waiting" and one["kind"] != "restore"]
    except UserError:
        return []


def waiting_line(entry: QueueEntry) -> str:
    """Return a line for a start that waits."""
    from gpushare.cli.queue import request, waits  # noqa: PLC0415 - only where one waits

    return (
        f"{entry['name'] or 'a start'} has waited {waits(entry['since'], time.time())} for "
        f"{request(entry)} (ticket {entry['ticket']}, position {entry['position']}): "
        f"{entry['reason']}"
    )


def _render(
    tenants: list[TenantStatus],
    *,
    everything: bool,
    wide: bool,
    waiting: Sequence[QueueEntry] = (),
) -> str:
    """Return the table, with a row for each container and card, and the messages below it."""
    remote = [tenant for tenant in tenants if is_remote(tenant)]
    granted = [tenant for tenant in tenants if tenant["state"] != "none"]
    rows = [
        row(tenant, card) + (_wide(tenant, card) if wide else ())
        for tenant in granted
        for card in tenant["cards"]
    ]
    rows += [_remote_row(tenant) + (("-",) * len(WIDE) if wide else ()) for tenant in remote]
    owners = [tenant for tenant in granted for _ in tenant["cards"]] + remote
    headings = (*PS_HEADINGS, *WIDE) if wide else PS_HEADINGS
    if any(tenant["ends_at"] is not None for tenant in granted):
        headings = (*headings, ENDS)
        rows = [(*cells, _ends(tenant)) for cells, tenant in zip(rows, owners, strict=True)]
    dropped = None if wide else PS_DROPPED
    lines = [terminal_table(headings, rows, dropped, colour)] if rows else []
    without = [tenant for tenant in tenants if tenant["state"] == "none" and tenant not in remote]
    messages = [warning for tenant in granted for warning in tenant["warnings"]]
    messages += [f"{tenant_name(tenant)} has no GPU: {tenant['reason']}" for tenant in without]
    if everything:
        messages += [
            f"{tenant_name(tenant)}: {note}" for tenant in granted for note in tenant["notes"]
        ]
    messages += map(waiting_line, waiting)
    if rows and messages:
        lines.append("")
    lines += map(printable, messages)
    return "\n".join(lines)


def is_remote(tenant: TenantStatus) -> bool:
    """Whether a container uses the GPU of a remote server, and nothing of this node."""
    return tenant["isolation"] == "remote"


def _remote_row(tenant: TenantStatus) -> tuple[str, ...]:
    """Return the cells of a container with a remote GPU, whose figures its server's node has."""
    since = f"since {local_time(tenant['created'])}"
    return (tenant_name(tenant), "-", "-", since, "-", "-", tenant["reason"])


def row(tenant: TenantStatus, card: TenantCard) -> tuple[str, ...]:
    """Return the cells of one tenant on one card."""
    return (
        tenant_name(tenant),
        str(card["index"]),
        memory(card),
        run_state(tenant) or eviction_state(tenant) or _idle(tenant) or cores(card),
        card["policy"] or "-",
        throttled(card),
        isolation(tenant),
    )


def eviction_state(tenant: TenantStatus) -> str:
    """Return "evicted since 14:05", "restoring", "eviction failed", or "" if it is not evicted."""
    evicted = tenant["eviction"]
    if evicted is None:
        return ""
    if evicted["state"] == "failed":
        return "eviction failed"
    if evicted["state"] != "evicted":
        return evicted["state"]
    waits = " (waits)" if evicted["waits_since"] is not None else ""
    return f"evicted since {local_time(evicted['since'])}{waits}"


def _ends(tenant: TenantStatus) -> str:
    ends = tenant["ends_at"]
    return "-" if ends is None else local_time(ends)


def isolation(tenant: TenantStatus) -> str:
    """Return what enforces the quota: "interposer", "mps", "mps (percentage, trusted)"."""
    mps = tenant["mps"]
    words = {"percentage": mps and mps["percentage"] < 100, "trusted": mps and mps["trusted"]}
    details = ", ".join(word for word, holds in words.items() if holds)
    return f"{tenant['isolation']} ({details})" if details else tenant["isolation"]


def _idle(tenant: TenantStatus) -> str:
    since = tenant["idle_since"]
    return "" if since is None else f"idle since {local_time(since)}"


def memory(card: TenantCard) -> str:
    """Return "3.9/4.0 GiB", "5.0/4.0+2.0 GiB" with burst, "3.7/2.0 GiB over quota"."""
    return memory_use(card["used_bytes"], card["quota_bytes"], card["limit_bytes"])


def memory_use(used: int, quota: int, limit: int) -> str:
    """Return the same of three sizes; `limit` is the quota, and current burst."""
    shown = format_use(used, quota, limit)
    return f"{shown} over quota" if used > limit else shown


def run_state(tenant: TenantStatus) -> str:
    """Return a state of RUN_STATES, or "" if the container runs."""
    by = {intervention["by"] for intervention in tenant["interventions"]}
    return next((state for one, state in RUN_STATES.items() if one in by), "")


def cores(card: TenantCard) -> str:
    """Return "29.8/30 %", "~97/30 %"; "-" means unknown or not requested."""
    return cores_use(cores_used(card, "1s"), card["cores"])


def cores_use(shown: str, quota: int | None) -> str:
    """Return the same of the cell of what is used and of the quota in percent."""
    requested = str(quota) if quota else "-"
    return "-" if shown == requested == "-" else f"{shown}/{requested} %"


def cores_used(card: TenantCard, window: str) -> str:
    """Return "29.8"; "~97" for a driver's figure; "?" if the scheduler does not respond."""
    usage = card["compute"]
    figure = usage["cores_used"][window]
    if figure is None:
        return "-" if usage["gate"] in {"", "open"} or usage["cores_source"] else "?"
    return cores_figure(figure, usage["cores_source"])


def cores_figure(figure: float, source: str) -> str:
    """Return "29.8"; "~97" for a driver's figure."""
    return f"~{figure:.0f}" if source == "driver" else f"{figure:.1f}"


def throttled(card: TenantCard, window: str = "1s") -> str:
    """Return "12 %"."""
    return throttled_part(card["compute"]["throttled"][window])


def throttled_part(fraction: float | None) -> str:
    """Return "12 %"; "-" means unknown."""
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
        str(usage["windows"]),
        str(usage["overruns"]),
        str(usage["forced_launches"]),
        "yes" if usage["is_hung"] else "no",
    )


def latency_class(tenant: TenantStatus) -> str:
    """Return "online", "offline 5"."""
    return class_name(tenant["priority"], tenant["class"])


def class_name(priority: int, latency_class: str) -> str:
    """Return the same of a priority."""
    return "online" if latency_class == "online" else f"offline {priority}"


def share(tenant: TenantStatus, card: TenantCard) -> str:
    """Return "fixed-share 30.0 %", "burst-share 30.0 % and more, offline 5", "-" while paused."""
    if card["share_percent"] is None:
        return "a whole card" if tenant["isolation"] == "exclusive" else "-"
    more = "" if card["is_capped"] else " and more"
    return f"{card['policy']} {card['share_percent']:.1f} %{more}, {latency_class(tenant)}"


def tenant_name(tenant: TenantStatus) -> str:
    """Return the engine's name of a tenant, or the start of its id."""
    return tenant["name"] or tenant["id"][:12]
