# SPDX-License-Identifier: Apache-2.0
"""`gpushare queue`: the starts that wait for room."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.commands import COMMANDS
from gpushare.cli.session import CommandGroup, GpushareCommand, shared_options
from gpushare.cli.text import printable, terminal_table

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol.queue import QueueEntry

HEADINGS: Final = (
    "POSITION",
    "TICKET",
    "NAME",
    "USER",
    "REQUEST",
    "PRIORITY",
    "WAITS",
    "REASON",
)
_DROPPED: Final = ("USER", "PRIORITY")


@click.group(
    "queue",
    CommandGroup,
    invoke_without_command=True,
    epilog=f"Example: {COMMANDS['queue'].example}",
)
@shared_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """List the starts that wait for room, or cancel one.

    Evicted containers that wait for their restore are in the list, too; they have no ticket.

    The rows are in the order in which room is granted: class online first, then by priority (0 is
    first), then by arrival. For a start that does not fit, as many cards as it requests are
    withheld from all that come after it. Room is reserved for a start that is granted until it
    starts.

    A start waits with --wait of `gpushare run`.
    """
    if ctx.invoked_subcommand is not None:
        return
    session = ctx.ensure_object(shared.Session)
    session.show_rows(session.client.queue(), table, "no start waits for room.")


@command.command("cancel", cls=GpushareCommand, epilog="Example: gpushare queue cancel 3f2a8c01")
@shared_options
@click.argument("ticket", shell_complete=shared.completes("tickets"))
@click.pass_context
def cancel(ctx: click.Context, ticket: str) -> None:
    """Cancel a start that waits: your own, or as root any.

    The command that waits exits with status 125 and starts nothing.
    """
    session: Session = ctx.ensure_object(shared.Session)
    name = session.client.cancel_ticket(ticket)
    session.show({"ticket": ticket, "name": name}, lambda: printable(f"{name}: cancelled"))


def table(entries: list[QueueEntry]) -> str:
    """Return a row for each start."""
    rows = [_row(entry, time.time()) for entry in entries]
    return terminal_table(HEADINGS, rows, _DROPPED, _colour)


def waits(since: float, now: float) -> str:
    """Return `12 s`, `3 min`, `2 h 5 min`: how long a start has waited."""
    seconds = max(0, int(now - since))
    hours, minutes = divmod(seconds // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def request(entry: QueueEntry) -> str:
    """Return `4 GiB`, `2 x 4 GiB`, `all cards: 4 GiB`."""
    if entry["kind"] == "restore":
        return f"restore {entry['requests']}"
    if entry["count"] is None:
        return f"all cards: {entry['requests']}"
    return entry["requests"] if entry["count"] == 1 else f"{entry['count']} x {entry['requests']}"


def _row(entry: QueueEntry, now: float) -> tuple[str, ...]:
    cards = ", ".join(map(str, entry["cards"]))
    granted = entry["state"] == "granted"
    return (
        "granted" if granted else str(entry["position"]),
        entry["ticket"] or "-",
        entry["name"] or "-",
        "root" if entry["uid"] == 0 else str(entry["uid"]),
        request(entry),
        str(entry["priority"]),
        waits(entry["since"], entry["granted"] if granted else now),
        f"starts on card {cards}" if granted else entry["reason"] or "-",
    )


def _colour(heading: str, cell: str) -> str:
    """Return the color of a cell; "": none."""
    return "green" if heading == "POSITION" and cell == "granted" else ""
