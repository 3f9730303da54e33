# SPDX-License-Identifier: Apache-2.0
"""`gpushare history`: past events of this node, or of a container."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import time
from typing import TYPE_CHECKING, Any, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.text import printable
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushare.cli.session import Session
    from gpushare.protocol import HistoryEvent
    from gpushare.protocol.rows import CardRow

UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: The text of an event, which follows the name of its container. `{field}` is a field of the event.
TEXTS: Final = {
    "daemon-ready": "gpushared {version} is ready",
    "daemon-stopped": "gpushared stopped; containers keep running",
    "config-reloaded": "the configuration was reloaded",
    "config-rejected": "the new configuration was rejected, the previous one stays: {error}",
    "node-setting-changed": "{setting} was set to {value} by the {source}",
    "node-setting-reset": "{setting} is set by gpushare.yaml again, not by a label of the node",
    "history-resumed": "the history is written again; {lost} earlier events are missing",
    "history-damaged": "the history was damaged and started again; the old file is {path}",
    "ledger-damaged": "files of {folder} were damaged ({error}): {files}",
    "ledger-repaired": "the ledger had lost {tenants}: restored from the copies",
    "ledger-write-failed": "the ledger cannot be written to disk: {error}",
    "integrity-lost": "new reservations are refused: {reason}",
    "integrity-confirmed": "the operator confirmed the integrity of the ledger",
    "request-refused": "was refused ({op}): {error}",
    "tenant-reserved": "reserved {memory_bytes} on card {cards}",
    "tenant-request-adjusted": "{note}",
    "tenant-not-allocated": "was not allocated a GPU: {reason}",
    "tenant-remote": "uses the GPU of remote server {server} ({address})",
    "tenant-bound": "started as process {pid}, isolation: {isolation}",
    "tenant-adopted": "was adopted after a restart of gpushared",
    "tenant-name-refused": "goes by its ID: the name {refused_name} is the ID of another container",
    "tenant-resized": "was resized by the operator: {rest}",
    "tenant-released": "exited ({reason}); its allocation was released",
    "claim-prepared": "was prepared: reserved {memory_bytes} on {cards}",
    "claim-released": "was released",
    "tenant-start-abandoned": "was abandoned by its runtime during create, and was killed",
    "tenant-frozen": "was frozen by {by}: {reason}",
    "tenant-refrozen": "was thawed by something other than gpushared, and was frozen again",
    "tenant-thawed": "was resumed by {by}",
    "ticket-queued": "waits in the queue (ticket {ticket}): {reason}",
    "ticket-granted": "was granted room after {waited_seconds} s (ticket {ticket})",
    "ticket-ended": "left the queue: {how} (ticket {ticket}): {reason}",
    "tenant-killed": "was killed: {reason}",
    "tenant-stop-requested": "was sent {signal} by {by}; SIGKILL follows after {timeout} s",
    "tenant-time-limit-near": "is stopped in {left_seconds} s: its time limit is near",
    "tenant-time-limit-failed": "could not be stopped at its time limit: {error}",
    "tenant-hung": "has pending work that does not seem to end",
    "tenant-bypasses-mps": "uses {card} without its MPS server (process {pid})",
    "tenant-lost-mps-server": "lost the MPS server of {card}: a fatal fault of {cause}",
    "tenant-evicted": (
        "was evicted ({cause}): {evicted_bytes} of card {cards} went to host memory in {seconds} s"
    ),
    "tenant-restored": "was restored ({cause}): {restored_bytes} to card {cards} in {seconds} s",
    "tenant-moved": (
        "was moved from card {from_cards} to card {cards}: {restored_bytes} in {seconds} s"
    ),
    "tenant-restore-waits": "uses CUDA and waits for its restore: {reason}",
    "tenant-eviction-failed": "could not be evicted, and goes on: {error}",
    "tenant-restore-failed": "could not be restored, and stays evicted: {error}",
    "tenant-eviction-lost": "has lost its GPU memory in the driver: {error}",
    "tenant-eviction-bypassed": "was restored by another program: its memory counts again",
    "tenant-idle-detected": "holds {used_bytes} and has not used its cards for {idle_seconds} s",
    "tenant-idle-warned": (
        "holds {used_bytes} and has not used its cards for {idle_seconds} s; action: {action}"
    ),
    "tenant-idle-action-failed": "is idle and could not be controlled ({action}): {error}",
    "over-quota-detected": "used {used_bytes} of {limit_bytes} on {card}",
    "over-quota-warned": "used {used_bytes} of {limit_bytes} on {card}; it was warned",
    "over-quota-frozen": "used {used_bytes} of {limit_bytes} on {card}; it was frozen",
    "over-quota-killed": "used {used_bytes} of {limit_bytes} on {card}; it was killed: {reason}",
    "over-quota-thawed": "is within its quota again and was thawed",
    "over-quota-cleared": "is within its quota again",
    "over-quota-action-failed": "could not be controlled ({step}): {error}",
    "memory-shortfall-reported": "could not allocate {requested_bytes} on {card} within its quota",
    "unallocated-container-detected": (
        "{program} ({pid}) in {container} uses {used_bytes} unallocated"
    ),
    "tenant-pages-lost": "lost its pages: {error}",
    "tenant-pages-incompatible": "continues with pages of another version: {error}",
    "gate-bypass-frozen": "{reason}",
    "gate-bypass-detected": "bypasses the gate: {charged} % charged, {driver} % seen by the driver",
    "driver-loaded": "the driver {driver} was loaded",
    "driver-missing": "there is no driver: {reason}",
    "driver-timed-out": "the driver does not respond: {reason}",
    "driver-recovered": "the driver responds again",
    "driver-sample-rejected": "the driver reported impossible figures: {reason}",
    "driver-cards-changed": "the driver {driver}, its cards or their MIG instances changed",
    "driver-worker-abandoned": "process {pid} hangs in the driver and cannot be killed",
    "card-unhealthy": "is unhealthy: {reason}",
    "card-recovered": "is healthy again",
    "card-xid-reported": "reported XID {xid}: {meaning}",
    "driver-replaced": "the driver was replaced: {reason}",
    "driver-limit-set-failed": "has a memory limit that the driver rejected: {reason}",
    "card-policy-changed": "was set to the policy {policy} by the operator",
    "card-cordoned": "was cordoned by the operator: {reason}",
    "card-uncordoned": "was uncordoned by the operator",
    "mps-control-started": "the MPS control daemon of {card} was started (process {pid})",
    "mps-control-adopted": "the MPS control daemon of {card} was adopted (process {pid})",
    "mps-control-failed": "the MPS control daemon of {card} does not run: {error}",
    "mps-control-stopped": "the MPS control daemon of {card} was ended",
    "mps-command-slow": "the MPS control daemon of {card} took {seconds} s for {command}",
    "mps-socket-repaired": "clients could not reach the MPS control daemon of {card}",
    "mps-limits-changed": "the limits of the MPS server of {card} were set again; found: {found}",
    "mps-limits-not-changed": "keeps its limits at the MPS server of {card}: {error}",
    "mps-server-faulted": "had a fatal fault on {card} (process {pid}), which ended: {ended}",
    "scheduler-started": "the scheduler was started",
    "scheduler-lost": "the scheduler exited: {reason}",
}

#: Who did it, by the field `by`, which older events of an operator lack.
_ACTORS: Final = {
    "operator": "the operator",
    "audit": "the audit",
    "idle": "idle.action of gpushare.yaml",
    "time-limit": "its time limit",
    "unknown": "another program",
}


def parse_duration(_ctx: click.Context, _parameter: click.Parameter, text: str) -> float:
    """Return a duration such as 90s, 15m, 1h or 7d in seconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if match is None:
        raise click.BadParameter(
            f"{text!r} is not a duration. Use, for example, 90s, 15m, 1h or 7d."
        )
    return float(match[1]) * UNITS[match[2]]


@shared.command("history")
@click.argument("name", default="", shell_complete=shared.completes("containers"))
@click.option(
    "--since",
    callback=parse_duration,
    metavar="TIME",
    default="24h",
    show_default=True,
    help="How far to look back: 15m, 1h, 7d.",
)
def command(session: Session, name: str, since: float) -> None:
    """Show past events of a container or of this node.

    NAME is a container as in gpushare ps, even one that has exited or was refused: its name or the
    end of it (train-0/main), its ID or the start of it; or a pod, for its containers; or a card's
    UUID. If several containers had the name, or one that begins so, all are shown; each line has
    the ID of its container.

    Without NAME, all recorded events are shown, oldest first. The section history of gpushare.yaml
    sets how long events are kept. The history is informational: a full disk loses events and has no
    other effect.
    """
    events = list(session.client.history(name, max(0.0, time.time() - since)))
    if session.json:
        click.echo(json.dumps(events, indent=2))
        return
    called = EventNames(events, session.client.cards())
    boot = ""
    for event in events:
        if boot and event["boot_id"] != boot:
            click.echo("-- reboot --")
        boot = event["boot_id"]
        click.echo(event_line(event, called))
    if not events:
        click.echo(
            f"no events recorded for {name}" if name else "no events recorded in that time",
            err=True,
        )


class EventNames:
    """The names of containers and cards, by all events: some are known only after the first."""

    def __init__(self, events: Sequence[HistoryEvent], cards: Sequence[CardRow]) -> None:
        self._names = {event["key"]: event["name"] for event in events if event["name"]}
        self._ids = {event["key"]: event["id"] for event in events if event["id"]}
        self._cards = {card["uuid"]: str(card["index"]) for card in cards}

    def container(self, event: HistoryEvent) -> str:
        """Return the name and the short ID of the container of `event`, empty if it has none."""
        key = event["key"]
        identity = (event["id"] or (self._ids.get(key, key) if key else ""))[:12]
        name = (self._names.get(key) if key else "") or event["name"]
        return f"{name} ({identity})" if name and identity not in name else name or identity

    def card(self, event: HistoryEvent) -> str:
        """Return the name of the card of `event`, empty if it has none."""
        uuid = event["card"]
        return f"card {self._cards.get(uuid, uuid)}" if uuid else ""


def event_line(event: HistoryEvent, called: EventNames) -> str:
    """Return one event as a line."""
    when = dt.datetime.fromtimestamp(event["time"], dt.timezone.utc).astimezone()
    mark = {"warning": "!", "error": "!!"}.get(event["level"], "")
    subject = called.container(event) or called.card(event)
    text = " ".join(filter(None, (subject, event_text(event, called.card(event)))))
    return printable(f"{when.isoformat(' ', 'seconds')[:19]}  {mark:<2}  {text}")


def event_text(event: HistoryEvent, card: str) -> str:
    """Return the text of an event; of an unknown one, its name and fields."""
    shown = {name: _shown(name, value) for name, value in event["fields"].items()}
    text = TEXTS.get(event["event"])
    rest = " ".join(f"{name}={value}" for name, value in shown.items() if value)
    if text is not None:
        with contextlib.suppress(KeyError):  # a daemon of another version may omit a field
            by = shown.get("by", "operator")
            shown["by"] = _ACTORS.get(by, by)
            return text.format_map({**shown, "rest": rest, "card": card}).rstrip(": ")
    return f"{event['event']} {rest}".rstrip()


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)
