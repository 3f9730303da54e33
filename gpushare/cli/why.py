# SPDX-License-Identifier: Apache-2.0
"""`gpushare why`: a breakdown of a container's memory usage, with advice."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from gpushare.cli import session as shared
from gpushare.cli.session import container_argument
from gpushare.cli.text import count, local_time, printable, table, wrapped
from gpushare.quota.size import format_size, format_use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session
    from gpushare.protocol.rows import DeniedAllocation, Why, WhyCard, WhyProcess

MOST_SHOWN: Final = 20  # processes, the largest first
NO_DRIVER: Final = (
    "has a quota, but gpushared has no driver to query. To find the cause, run gpushare doctor."
)
#: How kinds of memory are shown, if not by their names in the protocol.
LABELS: Final = {"context_limits": "context limits"}
HEADINGS: Final = ("PID", "CONTAINER PID", "NAME", "MEMORY", "LARGEST KIND", "DRIVER", "DENIED")


@shared.command("why")
@container_argument
def command(session: Session, container: str) -> None:
    """Break down a container's memory usage.

    The lines above "used" add up to the memory that is charged to the quota: buffers (cuMemAlloc),
    managed memory, pools, physical (cuMemCreate), arrays, graphs, modules, context limits (a larger
    heap or stack), external memory and contexts. orphaned is shared memory whose process has ended.
    unaccounted is memory that only the driver reports.

    Below are the driver's figure for the container's processes and the drift: how much more or less
    that is than the account expects. Then follow the processes, the last allocation that was
    denied, and advice.

    Of a process, MEMORY is the memory in its account, LARGEST KIND the largest part of it, DRIVER
    the driver's figure, DENIED the number of denied allocations, and CONTAINER PID its PID in the
    container.

    The last section lists changes to the request: keys that were translated from another system's,
    and keys that were not applied.
    """
    report = session.client.why(container)
    session.show(report, lambda: "\n\n".join("\n".join(block) for block in _blocks(report)))


def _blocks(report: Why) -> Iterator[list[str]]:
    if not report["cards"]:
        where = " of this node" if report["isolation"] == "remote" else ""
        none = f"has no GPU{where}: {report['reason']}" if report["state"] == "none" else NO_DRIVER
        yield [printable(f"{report['name']} {none}")]
        return
    for card in report["cards"]:
        yield list(_card(report, card))
    processes = report["processes"]
    if processes:
        rest = len(processes) - MOST_SHOWN
        yield [
            table(HEADINGS, map(_process, processes[:MOST_SHOWN])),
            *([f"and {rest} smaller ones; --json lists all"] if rest > 0 else []),
        ]
    findings = list(_findings(report))
    if findings:
        yield findings
    notes = [line for note in report["notes"] for line in wrapped(note, "  ", "  ")]
    if notes:
        yield ["Changes to the request:", *notes]


def _findings(report: Why) -> Iterator[str]:
    if not _is_whole(report):
        yield from wrapped(_denied(report["denied_allocations"], report["last_denied_allocation"]))
    if (evicted := report["eviction"]) is not None:
        cards = ", ".join(map(str, evicted["from_cards"]))
        yield from wrapped(
            f"State: {evicted['state']} since {local_time(evicted['since'])}; "
            f"{format_size(evicted['bytes'])} of card {cards} in host memory. The figures above "
            "are of the account, and none of it is on the card."
        )
    if (since := report["idle_since"]) is not None:
        yield from wrapped(f"Idle since {local_time(since)}: it does not use its cards.")
    if report["stale_reason"]:
        yield from wrapped(f"The driver's figures are out of date: {report['stale_reason']}.")
    for sentence in report["advice"]:
        yield from wrapped(sentence, "- ", "  ")


def _card(report: Why, card: WhyCard) -> Iterator[str]:
    use = format_use(card["used_bytes"], card["quota_bytes"], card["limit_bytes"])
    yield printable(f"{report['name']}  card {card['index']}  {card['model']}  {use}")
    yield from _whole(card) if _is_whole(report) else _share(card)
    yield from wrapped(f"{card['drift_text'][0].upper()}{card['drift_text'][1:]}.", "  ", "  ")


def _whole(card: WhyCard) -> Iterator[str]:
    yield breakdown_line("used", card["used_bytes"])
    yield breakdown_line("card", card["quota_bytes"])
    yield breakdown_line("available", card["quota_bytes"] - card["used_bytes"])


def _share(card: WhyCard) -> Iterator[str]:
    for part, size in card["kinds"].items():
        if size:
            yield breakdown_line(LABELS.get(part, part), size, _note(part, card))
    yield breakdown_line("used", card["used_bytes"], "total")
    burst, most = card["limit_bytes"] - card["quota_bytes"], card["burst_limit_bytes"]
    yield breakdown_line("quota", card["quota_bytes"])
    if most > card["quota_bytes"]:
        yield breakdown_line("burst", burst, f"burst limit {format_size(most)}")
    available = card["limit_bytes"] - card["used_bytes"]
    yield breakdown_line("available" if available >= 0 else "over quota", abs(available))
    if most := card["oversubscribed_limit_bytes"]:
        note = f"managed memory beside used, at most {format_size(most)}: oversubscribe"
        yield breakdown_line("oversubscribed", card["oversubscribed_bytes"], note)
    if card["exported_bytes"]:
        yield breakdown_line(
            "exported",
            card["exported_bytes"],
            "part of used; other processes can map it",
        )
    if card["imported_bytes"]:
        yield breakdown_line(
            "imported",
            card["imported_bytes"],
            "mapped, charged where it was allocated",
        )
    if card["driver_bytes"] is not None:
        has_managed = card["kinds"]["managed"] or card["oversubscribed_bytes"]
        managed = ", without managed" if has_managed else ""
        yield breakdown_line("driver", card["driver_bytes"], f"reported by the driver{managed}")
    if card["drift_bytes"] is not None:
        yield breakdown_line("drift", card["drift_bytes"], sign="+")


def breakdown_line(what: str, size: int, note: str = "", sign: str = "") -> str:
    """Return a line of the breakdown: the size in bytes, then in a readable unit."""
    sign = sign if size else ""
    shown = f"{'-' if size < 0 else sign}{format_size(abs(size))}"
    return f"  {what} {size:>{sign}{max(1, 24 - len(what))}}  {shown:<9}  {note}".rstrip()


def _is_whole(report: Why) -> bool:
    """Whether the container has whole cards, which have no account."""
    return report["isolation"] == "exclusive"


def _note(part: str, card: WhyCard) -> str:
    if part == "contexts":
        price = card["bytes_per_context"]
        each = f", {format_size(price)} each" if card["contexts"] * price else ""
        return f"{card['contexts']}{each}"
    if part == "pools" and card["pool_cached_bytes"]:
        return f"{format_size(card['pool_cached_bytes'])} of it unused, kept for later"
    return {
        "orphaned": "shared memory whose process has ended",
        "unaccounted": "reported only by the driver",
    }.get(part, "")


def _process(process: WhyProcess) -> tuple[str, ...]:
    parts: dict[str, int] = {}
    for card in process["cards"]:
        for part, size in card["kinds"].items():
            parts[part] = parts.get(part, 0) + size
    most = max(parts, key=lambda part: parts[part], default="")
    figures = [card["driver_bytes"] for card in process["cards"]]
    reported = [figure for figure in figures if figure is not None]
    return (
        str(process["pid"] or "-"),
        str(process["container_pid"]),
        process["name"],
        format_size(sum(parts.values())) if process["accounted"] else "-",
        f"{LABELS.get(most, most)} {format_size(parts[most])}" if most else "-",
        format_size(sum(reported)) if reported else "-",
        str(process["denied"]),
    )


def _denied(denied: int, last: DeniedAllocation | None) -> str:
    if last is None:
        return "No allocation was denied."
    when = ""
    were = "was" if denied == 1 else "were"
    if last["seen"] is not None:
        seen = dt.datetime.fromtimestamp(last["seen"], dt.timezone.utc).astimezone()
        when = f" at {seen.time().isoformat('seconds')}"
    return (
        f"{count(denied, 'allocation')} {were} denied, most recently {format_size(last['bytes'])}"
        f"{when} for process {last['container_pid']} in the container."
    )
