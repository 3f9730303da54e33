# SPDX-License-Identifier: Apache-2.0
"""What the pane below the table says of the selected row, and the page of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpushare.cli.table import printable
from gpushare.cli.top.picture import Card, Container
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.cli.top.picture import Process
    from gpushare.cli.top.view import Row

HELP: Final = """\
up down PgUp PgDn Home End   move
Enter or Space               fold and unfold a card or a container
t                            as a tree, or all containers in one list
s o > F6, <                  sort by the next column, by the one before
r I                          the other way around
/ F4                         show only what has these letters; Esc: everything again
i                            all that is known of the selected row, below
+ -                          look less often, or more
F5 ^L                        look now, draw the screen anew
h ? F1                       this page
q F10 ^C                     quit

MEMORY  used of the quota (of a card: of all it has); a+b GiB has b lent to it
GOT %   of the card in the last second; ~ as the driver says it, ? nobody counts
10 S    the same over ten seconds, 60 S over sixty
ASK %   asked; of a card what is promised
THR %   of the last second that it wanted the card and did not have it
STATE   over: above its quota; hung: work that seems never to end; ! marks both
"""
CHANGES: Final = """
k F9                         send a signal to the selected process
p                            give the selected container another policy, or other cores
"""


def detail(row: Row) -> list[str]:
    """Return the lines of the pane."""
    shown = row.shown
    if isinstance(shown, Card):
        lines = list(_card(shown))
    elif isinstance(shown, Container):
        lines = list(_container(shown))
    else:
        lines = list(_process(shown, row.owner))
    return [printable(line) for line in lines]


def _card(card: Card) -> Iterator[str]:
    yield f"card {card.index}  {card.model}  {card.uuid}"
    yield (
        f"memory   {format_size(card.used_bytes)} used, {format_size(card.promised_bytes)} "
        f"promised, {format_size(card.foreign_bytes)} foreign, {format_size(card.free_bytes)} free"
    )
    yield (
        f"compute  {card.got.text} % got in 1 s, {card.got_10s.text} in 10 s, "
        f"{card.got_60s.text} in 60 s, {card.cores_promised} % promised"
    )
    policy = f"all under {card.policy}" if card.policy else "each under its own policy"
    yield f"tenants  {card.tenants}/{card.tenants_max}, {card.mode}, {policy}"
    yield f"health   {card.health}"


def _container(container: Container) -> Iterator[str]:
    yield (
        f"{container.name}  {container.engine}  {container.id[:12]}  pid {container.pid or '-'}  "
        f"card {container.card}"
    )
    over = f", {format_size(container.over_bytes)} over" if container.over_bytes else ""
    yield (
        f"memory   {format_size(container.used_bytes)} of {format_size(container.memory_bytes)}"
        f"{over}, {container.denied} refused"
    )
    asked = f"{container.cores} %" if container.cores else "-"
    waited = "-" if container.throttled is None else f"{container.throttled * 100:.0f} %"
    yield (
        f"compute  asked {asked}, got {container.got.text} % in 1 s, {container.got_10s.text} in "
        f"10 s, {container.got_60s.text} in 60 s, waited {waited} of the last second"
    )
    yield f"share    {container.share or 'a whole card'}"
    yield (
        f"gate     {container.gate or '-'}, {container.overruns} overruns, {container.forced} "
        f"forced, isolation {container.isolation or '-'}"
    )
    if container.hung:
        yield "hung     work is pending that seems never to end"
    yield f"quota    {'; '.join(f'{key} {value}' for key, value in container.quota) or '-'}"
    yield from container.warnings
    yield from container.notes


def _process(process: Process, owner: Container | None) -> Iterator[str]:
    held = "-" if process.bytes is None else format_size(process.bytes)
    busy = "-" if process.utilisation is None else f"{process.utilisation} %"
    whose = "" if owner is None else f"  of {owner.name}, card {owner.card}"
    yield f"process {process.pid} {process.name}{whose}"
    yield f"in its container  {process.container_pid}"
    yield f"memory            {held}"
    yield f"of the card       {busy}"
