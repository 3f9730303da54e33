# SPDX-License-Identifier: Apache-2.0
"""`gpushare history`: what happened on this node, or to a container."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import time
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.table import printable
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushare.cli.session import Session
    from gpushare.protocol import Card, HistoryEvent

UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: What an event says, after the container's name where it is about one. `{field}` is of the event.
WORDS: Final = {
    "daemon-ready": "gpushared {version} serves",
    "daemon-stopped": "gpushared stopped; its containers go on",
    "config-read": "the configuration was read again",
    "config-bad": "the configuration is not right, the old one stays: {error}",
    "history-resumed": "the history is kept again; {lost} events are missing before",
    "history-damaged": "the history was damaged: begun anew, the old file is {path}",
    "ledger-damaged": "the ledger was damaged ({error}), the old file is {aside}",
    "ledger-rebuilt": "the ledger was made again from its copies: {tenants}",
    "ledger-behind": "the ledger had lost what its copies say of {tenants}: set right",
    "ledger-aside": "the disk does not take the ledger: {error}",
    "overrides-damaged": "{why}: what the operator last set holds",
    "state-in-doubt": "nothing new is promised: {why}",
    "state-cleared": "the operator has removed the doubt",
    "tenant-recovered": "was taken over from its pages: {memory_bytes}, process {pid}",
    "request-refused": "was refused ({op}): {error}",
    "tenant-reserved": "was promised {memory_bytes} of card {cards}",
    "tenant-noted": "{note}",
    "tenant-given-none": "got no GPU: {why}",
    "tenant-bound": "started as process {pid}, held by {isolation}",
    "tenant-adopted": "was found at work by a daemon that was started anew",
    "tenant-resized": "was changed by the operator: {rest}",
    "tenant-released": "ended ({why}): what it was promised is free",
    "tenant-stranded": "was left halfway by its runtime, and ended",
    "tenant-frozen": "was stopped by the {by}: {why}",
    "tenant-frozen-again": "was let go on by another, and stopped again",
    "tenant-thawed": "goes on: the {by} holds it no more",
    "tenant-killed": "is ended: {why}",
    "tenant-kicked": "was sent {signal} by the operator; killed after {grace} s",
    "tenant-hung": "has work pending that seems never to end",
    "over-quota-seen": "has {used_bytes} of the {may_bytes} that it may on {card}",
    "over-quota-warned": "has {used_bytes} of the {may_bytes} that it may on {card}: warned",
    "over-quota-frozen": "has {used_bytes} of the {may_bytes} that it may on {card}: stopped",
    "over-quota-killed": "has {used_bytes} of the {may_bytes} that it may on {card}: ended",
    "over-quota-thawed": "has no more than it may: goes on",
    "over-quota-ended": "has no more than it may",
    "over-quota-not-held": "could not be held ({step}): {error}",
    "memory-lacking": "was refused {wanted_bytes} of {card} by the driver that it was promised",
    "unknown-container-seen": "{program} ({pid}) in {container} has {used_bytes}, given none",
    "unknown-container-killed": "{program} ({pid}) in {container} had {used_bytes}: ended",
    "unknown-container-stays": "{program} ({pid}) in {container} cannot be ended: {error}",
    "memory-unattributed": "has {used_bytes} in use that the driver tells of no process",
    "pages-lost": "lost its pages: {error}",
    "pages-other": "goes on with pages of another version: {error}",
    "gate-bypassed": "goes round the gate: charged {charged} %, the driver saw {driver} %",
    "compute-held": "{why}",
    "compute-let-go": "runs all the time again",
    "compute-not-held": "could not be held to its part: {error}",
    "driver-loaded": "the driver {driver} answers",
    "driver-missing": "there is no driver: {why}",
    "driver-silent": "the driver does not answer: {why}",
    "driver-answers": "the driver answers again",
    "driver-implausible": "the driver says what cannot be: {why}",
    "driver-generation": "the driver {driver}, its cards or their parts are not as they were",
    "driver-worker-stuck": "process {pid} hangs in the driver and cannot be killed",
    "card-unwell": "cannot be used: {why}",
    "card-well": "can be used again",
    "card-xid": "had XID {xid}: {meaning}",
    "driver-changed": "the driver was changed: {why}",
    "driver-limits-failed": "has limits that the driver did not take: {why}",
    "card-policy": "was given the policy {policy} by the operator",
    "card-cordoned": "was cordoned by the operator: {reason}",
    "card-uncordoned": "is placed on again, by the operator",
    "scheduler-started": "the scheduler was started",
    "scheduler-lost": "the scheduler ended: {why}",
}


def seconds(_ctx: click.Context, _parameter: click.Parameter, text: str) -> float:
    """Return a time that has passed, as 90s, 15m, 1h, 7d."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no time that passed; write e.g. 90s, 15m, 1h, 7d")
    return float(found[1]) * UNITS[found[2]]


@shared.command("history", example="gpushare history train --since 1h")
@click.argument("name", default="")
@click.option(
    "--since",
    callback=seconds,
    metavar="TIME",
    default="24h",
    show_default=True,
    help="How far back: 15m, 1h, 7d.",
)
def command(session: Session, name: str, since: float) -> None:
    """Show what happened to a container, or on this node.

    NAME is a container as in gpushare ps, also one that has ended, or a card's UUID; without it
    all that was kept is shown, oldest first. How long it is kept, gpushare.yaml says (history.days,
    history.most). It is for people to read: a full disk costs some of it, and nothing else.
    """
    events = list(session.client.history(name, max(0.0, time.time() - since)))
    if session.json:
        click.echo(json.dumps(events, indent=2))
        return
    called = Called(events, session.client.cards())
    boot = ""
    for event in events:
        if boot and event["boot"] != boot:
            click.echo("-- the machine was started again --")
        boot = event["boot"]
        click.echo(line(event, called))
    if not events:
        click.echo(
            "nothing was kept of that" if name else "nothing was kept of that time", err=True
        )


class Called:
    """What tenants and cards are called now: an engine tells a name after the first events."""

    def __init__(self, events: Sequence[HistoryEvent], cards: Sequence[Card]) -> None:
        self._names = {event["key"]: event["name"] for event in events if event["name"]}
        self._cards = {card["uuid"]: str(card["index"]) for card in cards}

    def tenant(self, event: HistoryEvent) -> str:
        """Return what to call the tenant of `event`, empty where it is of none."""
        named = self._names.get(event["key"]) if event["key"] else None
        return named or event["name"] or event["id"][:12]

    def card(self, event: HistoryEvent) -> str:
        """Return what to call the card of `event`, empty where it is of none."""
        uuid = event["card"]
        return f"card {self._cards.get(uuid, uuid)}" if uuid else ""


def line(event: HistoryEvent, called: Called) -> str:
    """Return one event as a line."""
    when = dt.datetime.fromtimestamp(event["at"], dt.timezone.utc).astimezone()
    mark = {"warning": "!", "error": "!!"}.get(event["level"], "")
    who = called.tenant(event) or called.card(event)
    text = " ".join(filter(None, (who, words(event, called.card(event)))))
    return printable(f"{when.isoformat(' ', 'seconds')[:19]}  {mark:<2}  {text}")


def words(event: HistoryEvent, card: str) -> str:
    """Return what an event says; of one that this client does not know its name and fields."""
    shown = {name: _shown(name, value) for name, value in event["fields"].items()}
    said = WORDS.get(event["event"])
    rest = " ".join(f"{name}={text}" for name, text in shown.items() if text)
    if said is not None:
        with contextlib.suppress(KeyError):  # a daemon of another version says less
            return said.format_map({**shown, "rest": rest, "card": card}).rstrip(": ")
    return f"{event['event']} {rest}".rstrip()


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)
