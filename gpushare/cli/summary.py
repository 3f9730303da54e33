# SPDX-License-Identifier: Apache-2.0
"""`gpushare` alone: this machine, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushare import __version__
from gpushare.client import DaemonUnreachable
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from gpushare.cli.session import Session
    from gpushare.protocol import Card, Status

TRY = "docker run --runtime=gpushare -e GPUSHARE_MEMORY=4GiB -e GPUSHARE_CORES=30 IMAGE"


def show_summary(session: Session) -> None:
    """Print what there is and the next step; a machine that is not set up is no error here."""
    try:
        status = session.client.status()
        cards = session.client.cards()
    except DaemonUnreachable as error:
        why = str(error)
        nothing = {"version": __version__, "daemon": None, "next": "gpushare setup"}
        session.show(nothing, lambda: _absent(why))
        return
    data: dict[str, object] = {
        "version": __version__,
        "daemon": status,
        "cards": cards,
        "next": _next(status, cards),
    }
    session.show(data, lambda: _present(status, cards))


def _absent(why: str) -> str:
    return "\n".join(
        [
            f"gpushare {__version__}: {why}",
            "next: sudo gpushare setup --dry-run   (what it would do; then without --dry-run)",
            "      gpushare --help",
        ]
    )


def _present(status: Status, cards: list[Card]) -> str:
    kind = "simulated driver" if status["simulated"] else "driver"
    has = f"{count(status['cards'], 'card')}, {count(status['tenants'], 'container')}"
    driver = f"{kind} {status['driver_version']}, CUDA {status['cuda_version']}"
    lines = [f"gpushare {status['version']}: {driver}, {has}"]
    lines += [
        f"card {card['index']}: {card['model']}, {format_size(card['free_bytes'])} of "
        f"{format_size(card['memory_bytes'])} free, {card['health']}"
        for card in cards
    ]
    lines += [f"warn: {warning}" for warning in status["warnings"]]
    lines.append(f"next: {_next(status, cards)}")
    return "\n".join(lines)


def _next(status: Status, cards: list[Card]) -> str:
    if not cards or any(card["health"] != "ok" for card in cards):
        return "gpushare doctor"
    return "gpushare ps" if status["tenants"] else TRY


def count(number: int, noun: str) -> str:
    """Return "1 card", "2 cards"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
