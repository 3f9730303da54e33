# SPDX-License-Identifier: Apache-2.0
"""`gpushare inspect`: everything that is known of one container."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.ps import cores, got, level, memory, name, share, throttled
from gpushare.cli.summary import count
from gpushare.cli.table import printable
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session
    from gpushare.protocol import Held, Tenant, TenantCard

KEY_WIDTH: Final = len("memory-percent") + 2  # the longest key of a quota


@shared.command("inspect", example="gpushare inspect train")
@click.argument("container")
def command(session: Session, container: str) -> None:
    """Show everything about one container.

    That is its quota and where it came from, its cards, its processes. Where its memory is, byte by
    byte, says `gpushare why`. CONTAINER is its engine's name, the start of its id, or
    namespace/pod/container.
    """
    tenant = session.client.tenant(container)
    session.show(tenant, lambda: "\n".join(_lines(tenant)))


def _lines(tenant: Tenant) -> Iterator[str]:
    created = dt.datetime.fromtimestamp(tenant["created"], dt.timezone.utc)
    yield _line("name", name(tenant))
    yield _line("id", tenant["id"])
    yield _line("engine", tenant["engine"])
    yield _line("state", tenant["state"])
    for hold in tenant["held"]:
        yield _line("held", _held(hold))
    if tenant["why"]:
        yield _line("why", tenant["why"])
    yield _line("pid", str(tenant["pid"] or "-"))
    yield _line("created", created.astimezone().isoformat(" ", "seconds"))
    yield _line("policy", tenant["policy"] or "-")
    yield _line("isolation", tenant["isolation"] or "-")
    yield _line("class", level(tenant))
    yield _line("on over", tenant["on_over"] or "-")
    for key, asked in sorted(tenant["quota"].items()):
        value, _, source = asked.partition(" ")
        yield _line(key, f"{value}   ({source})" if source else value)
    for note in tenant["notes"]:
        yield _line("note", note)
    for warning in tenant["warnings"]:
        yield _line("warning", warning)
    for card in tenant["cards"]:
        yield from _card(tenant, card)
    for process in tenant["processes"]:
        held = "-" if process["bytes"] is None else format_size(process["bytes"])
        inside = process["container_pid"]
        where = "" if inside == process["pid"] else f" (in the container {inside})"
        yield _line("process", f"{process['pid']}{where}  {process['name']}  {held}")


def _held(held: Held) -> str:
    since = dt.datetime.fromtimestamp(held["since"], dt.timezone.utc).astimezone()
    how = {"operator": "paused", "audit": "frozen"}.get(held["by"], "is to end")
    why = f": {held['why']}" if held["why"] else ""
    return f"{how} since {since.isoformat(' ', 'seconds')} ({held['by']}{why})"


def _card(tenant: Tenant, card: TenantCard) -> Iterator[str]:
    whole = tenant["isolation"] == "exclusive"
    yield f"card {card['index']}  {card['uuid']}"
    yield _line("  memory", memory(card))
    if not whole:
        if card["memory_limit_bytes"] > card["memory_bytes"]:
            lent = format_size(card["limit_bytes"] - card["memory_bytes"])
            most = format_size(card["memory_limit_bytes"])
            yield _line("  lent", f"{lent} now, up to {most} with the quota while the card has it")
            yield _line("  borrowed", format_size(card["borrowed_bytes"]))
        if card["over_bytes"]:
            freed = f"it gets nothing more until it frees {format_size(card['over_bytes'])}"
            yield _line("  over", freed)
        yield _line("  allocated", format_size(card["buffer_bytes"]))
        yield _line("  overhead", f"{format_size(card['overhead_bytes'])}: {_overhead(card)}")
    yield _line("  cores", cores(card))
    yield from _compute(tenant, card, whole=whole)
    if not whole:
        yield _line("  denied", f"{count(card['denied'], 'allocation')} over the quota")


def _compute(tenant: Tenant, card: TenantCard, *, whole: bool) -> Iterator[str]:
    spent = card["spent"]
    figures = ", ".join(f"{got(card, window)} % in {window}" for window in spent["got"])
    of_driver = "; the driver's figures: nothing is counted" if spent["source"] == "driver" else ""
    yield _line("  got", f"{figures}{of_driver}")
    if whole:
        return
    yield _line("  share", share(tenant, card))
    waits = ", ".join(f"{throttled(card, window)} in {window}" for window in spent["throttled"])
    yield _line("  throttled", waits)
    yield _line("  gate", f"{spent['gate'] or '-'}, {_counts(card)}")
    seen = spent["driver_percent"]
    if seen is not None and spent["source"] == "gate":
        yield _line("  driver saw", f"{seen:.1f} % in 10s")


def _counts(card: TenantCard) -> str:
    spent = card["spent"]
    waited = f"threads waited {spent['waited_ns'] / 1e9:.1f} s"
    return (
        f"{count(spent['windows'], 'window')}, {count(spent['overruns'], 'overrun')}, "
        f"{spent['forced']} forced, {waited}{', hung' if spent['hung'] else ''}"
    )


def _overhead(card: TenantCard) -> str:
    return f"{count(card['contexts'], 'context')}, modules, the driver's own"


def _line(key: str, value: str) -> str:
    return printable(f"{key:<{KEY_WIDTH}}{value}")
