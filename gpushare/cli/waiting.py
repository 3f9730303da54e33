# SPDX-License-Identifier: Apache-2.0
"""`gpushare run --wait`: takes a ticket, shows its progress, and returns when it is granted."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare.cli.text import printable
from gpushare.client import DaemonError, DaemonUnreachable
from gpushare.errors import ErrorCode, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpushare.cli.session import Session
    from gpushare.protocol.queue import Ticket, TicketStatus

_LOOK_SECONDS: Final = (0.1, 0.1, 0.2, 0.3, 0.5)  # then each second
_GRACE_SECONDS: Final = 5.0  # of a deadline, which gpushared itself notices
_ENDS: Final = {
    "cancelled": "it was cancelled (gpushare queue cancel)",
    "timed-out": "no room was found in time",
    "expired": "it was granted, and the start came too late (queue.start_timeout)",
    "refused": "gpushare.yaml does not allow it any more",
    "": "gpushared does not know it any more",
}


class TicketEnded(UserError):
    """The ticket has ended without a grant; `timed_out`: its time was over."""

    code = ErrorCode.REFUSED

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


def wait_for_grant(
    session: Session,
    source: Mapping[str, Any],
    *,
    name: str,
    kind: str,
    seconds: int,
    rootless: bool,
) -> str:
    """Return the secret of a ticket that was granted; TicketEnded, click.Abort on Ctrl-C."""
    client = session.queue
    ticket = client.take_ticket(
        source, name=name, kind=kind, wait_seconds=seconds, rootless=rootless
    )
    progress = _Progress(session, ticket)
    until = time.monotonic() + seconds + _GRACE_SECONDS if seconds else None
    looks = iter(_LOOK_SECONDS)
    try:
        while True:
            status = _status(session, ticket, progress)
            if status is not None and status["state"] == "granted":
                progress.end(f"ticket {ticket['ticket']} was granted")
                return ticket["secret"]
            if status is not None and status["state"] == "ended":
                raise _ended(ticket, status["reason"])
            if until is not None and time.monotonic() > until:
                raise _ended(ticket, "timed-out")
            time.sleep(next(looks, 1.0))
    except KeyboardInterrupt:
        with contextlib.suppress(UserError):
            client.cancel_ticket(ticket["ticket"])
        raise click.Abort from None
    finally:
        progress.close()


def _status(session: Session, ticket: Ticket, progress: _Progress) -> TicketStatus | None:
    """Return what has become of the ticket; None while gpushared restarts, which keeps it."""
    try:
        status = session.queue.ticket_status(ticket)
    except (DaemonUnreachable, DaemonError):
        progress.show("gpushared does not respond; the ticket stays valid")
        return None
    if status["state"] == "waiting":
        where = f"position {status['position']} of {status['waiting']}"
        progress.show(f"{where}: {status['reason']}")
    return status


def _ended(ticket: Ticket, reason: str) -> TicketEnded:
    how, _, why = reason.partition(": ")
    text = why or _ENDS.get(how, reason)
    return TicketEnded(
        f"ticket {ticket['ticket']}: {text}. Nothing was started.", timed_out=how == "timed-out"
    )


class _Progress:
    """One line on stderr: updated on a terminal, otherwise printed once."""

    def __init__(self, session: Session, ticket: Ticket) -> None:
        self._session = session
        self._ticket = ticket["ticket"]
        self._begun = time.monotonic()
        self._is_terminal = sys.stderr.isatty() and not session.json
        self._was_shown = False

    def show(self, text: str) -> None:
        line = f"gpushare: waiting for room (ticket {self._ticket}"
        if not self._is_terminal:
            if not self._was_shown:
                self._session.note(printable(f"{line}): {text}"))
            self._was_shown = True
            return
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        width = max(20, shutil.get_terminal_size().columns - 1)
        shown = printable(f"{line}, {minutes}:{seconds:02}): {text}")
        shown = shown if len(shown) <= width else f"{shown[: width - 3]}..."
        click.echo(f"\r\x1b[K{shown}", nl=False, err=True)
        self._was_shown = True

    def end(self, text: str) -> None:
        """Say how the waiting ended, if anything was shown of it."""
        if self._was_shown:
            self.close()
            self._session.note(f"gpushare: {text}")

    def close(self) -> None:
        """Remove the line from the terminal."""
        if self._is_terminal and self._was_shown:
            click.echo("\r\x1b[K", nl=False, err=True)
        self._was_shown = False
