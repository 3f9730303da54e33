# SPDX-License-Identifier: Apache-2.0
"""`gpushare why`: where every byte of a container's memory is, and what to do about it."""

from __future__ import annotations

import datetime as dt
import re
import textwrap
from typing import TYPE_CHECKING, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.summary import count
from gpushare.cli.table import printable, table
from gpushare.quota.size import format_size, format_use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.session import Session
    from gpushare.protocol import Denied, Why, WhyCard, WhyProcess

WIDTH: Final = 80
MOST_SHOWN: Final = 20  # processes, those that hold most first
NO_DRIVER: Final = "has a share, and gpushared no driver to ask; gpushare doctor says why"
COMMAND: Final = re.compile(r"gpushare set \S+ --memory \S+")
GLUE: Final = "\0"
HEADINGS: Final = ("PID", "INSIDE", "NAME", "HELD", "MOST OF IT", "DRIVER", "DENIED")


@shared.command("why", example="gpushare why train")
@click.argument("container")
def command(session: Session, container: str) -> None:
    """Show where every byte of a container's memory is.

    The parts add up to what counts against the quota. buffers is plain memory; managed, pools,
    physical (cuMemCreate), arrays, graphs, modules, limits (heap and stacks made larger), external
    and contexts are what they are called after; orphaned is shared memory whose maker has ended;
    beyond is what the driver was found to have beside all that.

    Below stands what the driver itself says of the container's processes, and the drift: how much
    more that is than the account expects, or less. Then each process, the last allocation that was
    refused, and what to do.

    HELD is what a process has in the account, MOST OF IT the largest part; DRIVER what the driver
    says of it; DENIED how many allocations it was refused. INSIDE is its pid in the container.

    Last stands what of its request was read in another system's words, or was not taken.
    """
    report = session.client.why(container)
    session.show(report, lambda: "\n\n".join("\n".join(block) for block in _blocks(report)))


def _blocks(report: Why) -> Iterator[list[str]]:
    if not report["cards"]:
        none = f"has no GPU: {report['why']}" if report["state"] == "none" else NO_DRIVER
        yield [printable(f"{report['name']} {none}")]
        return
    for card in report["cards"]:
        yield list(_card(report, card))
    processes = report["processes"]
    if processes:
        rest = len(processes) - MOST_SHOWN
        yield [
            table(HEADINGS, map(_process, processes[:MOST_SHOWN])),
            *([f"and {rest} that hold less; --json has all"] if rest > 0 else []),
        ]
    said = list(_said(report))
    if said:
        yield said
    notes = [line for note in report["notes"] for line in wrapped(printable(note), "  ")]
    if notes:
        yield ["of what it asked for:", *notes]


def _said(report: Why) -> Iterator[str]:
    if not _is_whole(report):
        yield from wrapped(_refused(report["denied"], report["last_denied"]))
    if report["stale"]:
        yield from wrapped(f"The driver's figures are old: {report['stale']}.")
    for sentence in report["advice"]:
        yield from wrapped(sentence, "- ")


def _card(report: Why, card: WhyCard) -> Iterator[str]:
    use = format_use(card["used_bytes"], card["memory_bytes"], card["limit_bytes"])
    yield printable(f"{report['name']}  card {card['index']}  {card['model']}  {use}")
    yield from _whole(card) if _is_whole(report) else _share(card)
    yield from wrapped(f"{card['drift'][0].upper()}{card['drift'][1:]}.", "  ")


def _whole(card: WhyCard) -> Iterator[str]:
    yield line("used", card["used_bytes"])
    yield line("card", card["memory_bytes"])
    yield line("free", card["memory_bytes"] - card["used_bytes"])


def _share(card: WhyCard) -> Iterator[str]:
    for part, size in card["parts"].items():
        if size:
            yield line(part, size, _note(part, card))
    yield line("used", card["used_bytes"], "the sum")
    lent, most = card["limit_bytes"] - card["memory_bytes"], card["memory_limit_bytes"]
    yield line("quota", card["memory_bytes"])
    if most > card["memory_bytes"]:
        yield line("lent", lent, f"up to {format_size(most)} in all, while it is free")
    free = card["limit_bytes"] - card["used_bytes"]
    yield line("free" if free >= 0 else "over", abs(free))
    if card["exported_bytes"]:
        yield line("exported", card["exported_bytes"], "of used: its other processes may map it")
    if card["imported_bytes"]:
        yield line("imported", card["imported_bytes"], "mapped, and counted where it was made")
    if card["driver_bytes"] is not None:
        managed = ", without managed memory" if card["parts"]["managed"] else ""
        yield line("driver", card["driver_bytes"], f"its own figure{managed}")
    if card["drift_bytes"] is not None:
        yield line("drift", card["drift_bytes"], sign="+")


def line(what: str, size: int, note: str = "", sign: str = "") -> str:
    """Return a line of the sum: exact, so that it can be added up, and then to be read."""
    sign = sign if size else ""
    shown = f"{'-' if size < 0 else sign}{format_size(abs(size))}"
    return f"  {what:<9} {size:>{sign}15}  {shown:<9}  {note}".rstrip()


def _is_whole(report: Why) -> bool:
    """Whether its cards are whole: they have no account."""
    return report["isolation"] == "exclusive"


def _note(part: str, card: WhyCard) -> str:
    if part == "contexts":
        price = card["context_bytes"]
        each = f", {format_size(price)} each" if card["contexts"] * price else ""
        return f"{card['contexts']}{each}"
    if part == "pools" and card["pool_kept_bytes"]:
        return f"{format_size(card['pool_kept_bytes'])} of it free, kept for later"
    return {
        "orphaned": "shared memory whose maker has ended",
        "beyond": "the driver has it beside the account",
    }.get(part, "")


def _process(process: WhyProcess) -> tuple[str, ...]:
    parts: dict[str, int] = {}
    for card in process["cards"]:
        for part, size in card["parts"].items():
            parts[part] = parts.get(part, 0) + size
    most = max(parts, key=lambda part: parts[part], default="")
    figures = [card["driver_bytes"] for card in process["cards"]]
    told = [figure for figure in figures if figure is not None]
    return (
        str(process["pid"] or "-"),
        str(process["container_pid"]),
        process["name"],
        format_size(sum(parts.values())) if process["accounted"] else "-",
        f"{most} {format_size(parts[most])}" if most else "-",
        format_size(sum(told)) if told else "-",
        str(process["denied"]),
    )


def _refused(denied: int, last: Denied | None) -> str:
    if last is None:
        return "No allocation was refused."
    when = ""
    if last["seen"] is not None:
        seen = dt.datetime.fromtimestamp(last["seen"], dt.timezone.utc).astimezone()
        when = f" at {seen.time().isoformat('seconds')}"
    return (
        f"{count(denied, 'allocation')} refused; the last{when}, of "
        f"{format_size(last['bytes'])}, to process {last['container_pid']} in the container."
    )


def wrapped(text: str, before: str = "") -> Iterator[str]:
    """Yield the lines of `text`, none wider than WIDTH; `before` stands before the first.

    A command to type stays on one line.
    """
    for one in textwrap.wrap(
        COMMAND.sub(lambda command: command[0].replace(" ", GLUE), printable(text)),
        WIDTH,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_long_words=False,
        break_on_hyphens=False,
    ):
        yield one.replace(GLUE, " ")
