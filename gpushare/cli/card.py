# SPDX-License-Identifier: Apache-2.0
"""`gpushare card`: the policies of the cards, their links, cordon and drain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.run_state import timeout_option
from gpushare.cli.set import QuotaValue
from gpushare.cli.status import available, colour
from gpushare.cli.text import count, printable, table, terminal_table
from gpushare.client import DaemonError, RequestRefused, UnknownTenant
from gpushare.errors import ErrorCode, ExitStatus, UserError
from gpushare.quota.keys import KEYS, is_beginning, is_card
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session
    from gpushare.client import Client
    from gpushare.protocol.rows import CardRow, TenantStatus

LISTED = (
    "CARD",
    "UUID",
    "MODEL",
    "ALLOWED MODE",
    "POLICY",
    "CORDONED",
    "NUMA",
    "BEST LINK",
    "TENANTS",
    "AVAILABLE",
)
#: The columns that are left out if the terminal is too narrow, in this order.
DROPPED: Final = ("AVAILABLE", "TENANTS", "UUID", "NUMA", "BEST LINK", "MODEL", "POLICY")
POLICY = ("CARD", "MODEL", "POLICY", "CORES", "TENANTS")
NONE = "there is no card. To find the cause, run gpushare doctor."
OWN = "per container"
NOT_KNOWN = "?"
DRAINED = ("CONTAINER", "STATE", "MEMORY USED", "PID")
POLL_SECONDS: Final = 0.5

_card_argument: Final = click.argument("card", shell_complete=shared.completes("cards"))
_reason_option: Final = click.option(
    "--reason", metavar="TEXT", help="Reason to show when a container is refused the card."
)


@shared.group("card")
def command() -> None:
    """Set a card's sharing policy, or cordon and drain it."""


@shared.command("ls", example="gpushare card ls")
def ls(session: Session) -> None:
    """List the cards with their settings and links.

    ALLOWED MODE is which requests the card accepts, as set by `cards` in gpushare.yaml or by a
    label of the Kubernetes node: any, shared (no whole cards) or exclusive (only whole cards).
    POLICY is the policy that `gpushare card policy` set. CORDONED tells whether new containers are
    kept off the card, and why. NUMA is its NUMA node.
    BEST LINK is the best link to another card, with that card's index: NV4 means four NVLinks, PIX
    one PCIe switch, PXB several, PHB a host bridge, NODE the same NUMA node, and SYS another NUMA
    node (as in nvidia-smi topo -m). --json lists all links.

    On a terminal that is too narrow, columns are left out in this order, and the last line names
    them: AVAILABLE, TENANTS, UUID, NUMA, BEST LINK, MODEL, POLICY. If that does not suffice, the
    longest texts are shortened. A pipe gets all columns. Colors are used only on a terminal, and
    not if NO_COLOR is set.
    """
    session.show_rows(session.client.cards(), _listed, NONE)


@shared.command("policy", example="gpushare card policy 0 burst-share")
@click.argument("card", required=False, shell_complete=shared.completes("cards"))
@click.argument("policy", type=QuotaValue(KEYS["policy"]), required=False, metavar="[POLICY]")
@click.option("--reset", is_flag=True, help="Use the policy that each container requests.")
def policy(session: Session, card: str | None, policy: str | None, reset: bool) -> None:
    """Show or set the policy by which containers share a card's compute.

    CARD is an index of `gpushare ls` or a UUID. Without CARD, all cards are listed. POLICY is
    fixed-share, burst-share, best-effort or native-burst-share, or qGPU's short name fs, bs or be.
    It overrides the requests of all current and future containers of the card, except those with a
    policy from `gpushare set`. With fixed-share or burst-share, a container without cores keeps its
    own policy. The policy persists across restarts and reboots.

    If the policy would reserve more cores than the card has, it is refused (exit status 3).
    """
    if reset and (policy or card is None):
        raise click.UsageError(
            "--reset requires a card and no policy, for example: card policy 0 --reset"
        )
    if card is not None and (policy or reset):
        cards = [session.client.set_card_policy(card, policy)]
    else:
        cards = [row for row in session.client.cards() if card is None or _is(row, card)]
    if card is not None and not cards:
        text, fix = f"there is no card {card}", "See gpushare ls."
        raise UserError(f"{text}. {fix}", code=ErrorCode.NOT_FOUND, key="CARD", value=card, fix=fix)
    session.show_rows(cards, _policies, NONE)


@shared.command("cordon", example='gpushare card cordon 0 --reason "ECC errors"')
@_card_argument
@_reason_option
def cordon(session: Session, card: str, reason: str | None) -> None:
    """Stop placing containers on a card. Running containers are not affected.

    CARD is an index of `gpushare ls` or a UUID. A container of the card that is stopped and started
    again is placed on another card, or refused. The card stays cordoned across restarts and
    reboots, until `gpushare card uncordon`.
    """
    shown = session.client.cordon(card, reason)
    session.show(shown, lambda: _listed([shown]))


@shared.command("uncordon", example="gpushare card uncordon 0")
@_card_argument
def uncordon(session: Session, card: str) -> None:
    """Allow new containers on a card again."""
    shown = session.client.uncordon(card)
    session.show(shown, lambda: _listed([shown]))


def _is(card: CardRow, name: str) -> bool:
    uuid = card["uuid"]  # as the daemon takes it
    return is_card(name, card["index"], uuid, card["bus_id"]) or is_beginning(name, uuid)


def _policies(cards: list[CardRow]) -> str:
    return table(POLICY, map(_policy_row, cards))


def _policy_row(card: CardRow) -> tuple[str, ...]:
    return (
        str(card["index"]),
        card["model"],
        card["policy"] or OWN,
        f"{100 - card['cores_available']} %",
        f"{card['tenants']}/{card['max_tenants']}",
    )


def _listed(cards: list[CardRow]) -> str:
    return terminal_table(LISTED, map(_row, cards), DROPPED, colour)


def _row(card: CardRow) -> tuple[str, ...]:
    return (
        str(card["index"]),
        card["uuid"],
        card["model"],
        card["allowed_mode"],
        card["policy"] or OWN,
        _cordoned(card),
        NOT_KNOWN if card["numa_node"] is None else str(card["numa_node"]),
        _best_link(card),
        f"{card['tenants']}/{card['max_tenants']}",
        available(card),
    )


def _cordoned(card: CardRow) -> str:
    if not card["cordoned"]:
        return "no"
    return f"yes: {printable(card['cordon_reason'])}" if card["cordon_reason"] else "yes"


def _best_link(card: CardRow) -> str:
    """Return `NV4 1`: the best link, and the indices of the cards at its other end."""
    known = [link for link in card["links"] if link["kind"] != NOT_KNOWN]
    if not known:
        return "-"
    least = min(link["distance"] for link in known)
    best = [link for link in known if link["distance"] == least]
    return f"{best[0]['kind']} {','.join(str(link['index']) for link in best)}"


@shared.command("drain", example="gpushare card drain 0 --wait")
@_card_argument
@_reason_option
@click.option("--wait", is_flag=True, help="Wait until the card is empty.")
@click.option(
    "--move",
    is_flag=True,
    help="Move the containers on the card to other cards, as gpushare move does.",
)
@click.option(
    "--stop", is_flag=True, help="Stop the containers on the card, as gpushare stop does."
)
@timeout_option
def drain(
    session: Session,
    card: str,
    *,
    reason: str | None,
    wait: bool,
    move: bool,
    stop: bool,
    timeout: int,
) -> None:
    """Cordon a card, and list, move or stop its containers.

    CARD is an index of `gpushare ls` or a UUID. gpushare places no new containers on the card.
    Running containers are not affected unless --move or --stop is given. With both, what cannot be
    moved is stopped. With --wait the command returns when
    the last container has exited. A container that its engine starts again is placed on another
    card, or refused. Ctrl-C ends only the wait: the card stays cordoned until `gpushare card
    uncordon`.

    If a container cannot be moved or stopped, the others still are, and the exit status is 3, or 1
    if the driver failed with it.
    """
    client = session.client
    cordoned = client.cordon(card, reason)
    tenants = list(_on(cordoned, client))
    why = reason or f"draining card {cordoned['index']}"
    statuses: list[int] = []
    if move:
        statuses = [_moved(tenant, cordoned, why, session) for tenant in tenants]
        tenants = list(_on(cordoned, client))
    if stop:
        statuses = [_stopped(one, timeout, why, session) for one in tenants]
    if wait:
        tenants = _waited(cordoned, tenants, session)
    session.show({"card": cordoned, "tenants": tenants}, lambda: _text(cordoned, tenants))
    click.get_current_context().exit(max(statuses, default=0))


def _moved(tenant: TenantStatus, card: CardRow, why: str, session: Session) -> int:
    """Move a tenant to the first card that takes it; report why none did. Return the status."""
    last: UserError | None = None
    for other in session.client.cards():
        if other["uuid"] == card["uuid"] or other["cordoned"]:
            continue
        try:
            session.client.move(tenant["key"], other["uuid"], why)
        except (RequestRefused, DaemonError) as error:
            last = error
        except UnknownTenant:  # it has exited
            return 0
        else:
            return 0
    name, index = tenant["name"], card["index"]
    return session.report(
        last or RequestRefused(f"{name} cannot be moved: there is no card besides card {index}")
    )


def _stopped(tenant: TenantStatus, timeout: int, why: str, session: Session) -> int:
    """Stop a tenant; report the reason if that is not possible. Return the status."""
    try:
        session.client.stop(tenant["key"], "TERM", timeout, why)
    except UnknownTenant as error:  # it has exited already
        session.report(error)
    except (RequestRefused, DaemonError) as error:
        return session.report(error)
    return 0


def _on(card: CardRow, client: Client) -> Iterator[TenantStatus]:
    for tenant in client.tenants():
        if any(part["uuid"] == card["uuid"] for part in tenant["cards"]):
            yield tenant


def _waited(card: CardRow, tenants: list[TenantStatus], session: Session) -> list[TenantStatus]:
    """Return when the card is empty; list the remaining containers on stderr as they change."""
    shown: list[str] = []
    try:
        while tenants:
            names = [tenant["name"] for tenant in tenants]
            if names != shown:
                waiting = f"waiting for {count(len(names), 'container')}: {', '.join(names)}"
                session.note(printable(f"card {card['index']}: {waiting}"))
                shown = names
            time.sleep(POLL_SECONDS)
            tenants = list(_on(card, session.client))
    except KeyboardInterrupt:
        index = card["index"]
        session.note(
            f"card {index} stays cordoned, with {count(len(tenants), 'container')} still on it. "
            f"To undo this, run: gpushare card uncordon {index}"
        )
        click.get_current_context().exit(ExitStatus.INTERRUPTED)
    return tenants


def _text(card: CardRow, tenants: list[TenantStatus]) -> str:
    index = card["index"]
    if not tenants:
        return f"card {index} is cordoned and empty"
    rows = (_drained_row(card, tenant) for tenant in tenants)
    return f"card {index} is cordoned; still on it:\n{table(DRAINED, rows)}"


def _drained_row(card: CardRow, tenant: TenantStatus) -> tuple[str, ...]:
    used = sum(part["used_bytes"] for part in tenant["cards"] if part["uuid"] == card["uuid"])
    pid = str(tenant["pid"]) if tenant["pid"] else "-"
    return tenant["name"], tenant["state"], format_size(used), pid


for one in (ls, policy, cordon, uncordon, drain):
    command.add_command(one)
