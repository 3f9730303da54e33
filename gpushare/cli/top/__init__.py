# SPDX-License-Identifier: Apache-2.0
"""`gpushare top`: cards, containers and processes, as they are each second.

The screen is drawn with the standard library's curses, as nvitop and htop draw theirs: it adds no
package to an offline installation and nothing to the start (textual and prompt_toolkit are imported
for longer than all of the rest takes, rich reads no keys), knows every terminal in terminfo, and
writes only what has changed. Only `terminal` knows it: what is shown is made by pure functions.

picture  what the daemon said        view     folds, filter, order, the selected row
columns  the table                   keys     what a key does
draw     picture and view as lines   app      the loop; feed, terminal and plain are its ends
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gpushare.cli import session as shared
from gpushare.cli.top.columns import COLUMNS

if TYPE_CHECKING:
    from gpushare.cli.session import Session


@shared.command("top", example="gpushare top --once")
@click.option("--once", is_flag=True, help="Print it once, as text, and end.")
@click.option(
    "-d",
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="From one look to the next.",
)
@click.option(
    "--sort",
    type=click.Choice([column.key for column in COLUMNS]),
    default=COLUMNS[0].key,
    show_default=True,
    help="Order the containers of a card by this column.",
)
@click.option(
    "--filter",
    "wanted",
    metavar="TEXT",
    default="",
    help="Only containers and processes whose name has TEXT in it.",
)
@click.option("--flat", is_flag=True, help="All containers in one list, not by card.")
@click.option(
    "--ascii",
    "ascii_only",
    is_flag=True,
    help="Letters of ASCII only; of itself where the locale is not UTF-8.",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="With k send signals, with p change shares; else it only looks.",
)
def command(
    session: Session,
    once: bool,
    interval: float,
    sort: str,
    wanted: str,
    flat: bool,
    ascii_only: bool,
    allow_changes: bool,
) -> None:
    """Watch the cards, their containers and the processes of these.

    A line for each card, with bars of its memory (used, and promised) and of how busy it is. Below
    it each container: GOT is the percent of the card that it got in the last second, and over 10
    and 60 S on a wider terminal, with ~ where that is the driver's figure; ASK what it asked for;
    THR the part of the last second in which it wanted the card and did not have it. Of a process
    GOT is the driver's own figure, and its number in the container is in parentheses. STATE says
    over (above its memory quota) and hung (work that seems never to end).

    The keys are nvitop's and htop's: arrows, Enter or Space to fold, s to sort, r the other way
    around, / to filter, t for tree or list, i for details, + and - for the interval, h for help, q
    to quit. It only looks unless --allow-changes is given: then k sends a signal to a process and p
    changes a container's policy and cores, each after a question. That takes root.

    When gpushared goes away the last picture stays, with a line that says so, until it is back.

    --json prints a document a second, each on one line; --once --json one, indented.
    """
    # Here, for a `gpushare --help` imports this module: curses and the drawing are not needed then.
    from gpushare.cli.top import app, plain  # noqa: PLC0415
    from gpushare.cli.top.keys import State  # noqa: PLC0415
    from gpushare.cli.top.picture import look  # noqa: PLC0415
    from gpushare.cli.top.view import View  # noqa: PLC0415

    view = View(sort=sort, filter=wanted, tree=not flat, interval=interval)
    if once:
        picture = look(session.client)
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        unicode = encoding == "utf8" and not ascii_only
        session.show(picture.document, lambda: plain.text(picture, view, unicode=unicode))
    elif session.json:
        plain.stream(session.client, interval)
    else:
        state = State(view=view, may_change=allow_changes)
        app.run(session.client, state, ascii_only=ascii_only)
