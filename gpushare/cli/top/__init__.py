# SPDX-License-Identifier: Apache-2.0
"""`gpushare top`: live usage of cards, containers and processes.

The screen is drawn with curses of the standard library, as in nvitop and htop. curses adds no
package to an offline installation, supports every terminal in terminfo, and writes only what
changed. (textual and prompt_toolkit take longer to import than everything else together, and rich
reads no keys.) Only `terminal` uses curses. Pure functions compute what is shown, and the
loop of this module shows it.

snapshot  data from the daemon        processes their users and command lines
view      folds, filter, order, selected row
columns   the table                   keys      the effect of each key
graphs    a container over time               graph_source  their figures
render    snapshot and view as lines  terminal  draws
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpushare import config as configuration
from gpushare.cli import session as shared
from gpushare.cli.top.columns import COLUMNS
from gpushare.cli.top.graph_source import GraphSource
from gpushare.cli.top.graphs import graph_lines
from gpushare.cli.top.keys import (
    HELP,
    InputMode,
    ScreenAction,
    UiState,
    graph_target,
    press,
    prompt,
)
from gpushare.cli.top.processes import with_commands
from gpushare.cli.top.render import Frame, fit, frame, plain_text
from gpushare.cli.top.snapshot import take_snapshot
from gpushare.cli.top.terminal import Terminal, check
from gpushare.cli.top.view import TableView
from gpushare.errors import UserError
from gpushare.history import FOLDER
from gpushare.history.reader import HistoryReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushare.cli.session import Session
    from gpushare.cli.top.render import Line, Size
    from gpushare.cli.top.snapshot import TopSnapshot
    from gpushare.client import Client

_HINT = "q quit  Enter graphs  Space fold  s sort  / filter  t tree  i details  h help"


@shared.command("top")
@click.option("--once", is_flag=True, help="Print one snapshot as text and exit.")
@click.option(
    "-d",
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Refresh interval.",
)
@click.option(
    "--sort",
    type=click.Choice([column.key for column in COLUMNS]),
    default=COLUMNS[0].key,
    show_default=True,
    help="Sort the containers of a card by this column.",
)
@click.option(
    "--filter",
    "wanted",
    metavar="TEXT",
    default="",
    help="Show only containers and processes whose names contain TEXT.",
)
@click.option("--flat", is_flag=True, help="Show all containers in one list instead of by card.")
@click.option(
    "--ascii",
    "ascii_only",
    is_flag=True,
    help="Use only ASCII characters. This is the default if the locale is not UTF-8.",
)
def command(
    session: Session,
    once: bool,
    interval: float,
    sort: str,
    wanted: str,
    flat: bool,
    ascii_only: bool,
) -> None:
    """Show live usage of cards, containers and processes.

    The bars of each card show its used (and, shaded, allocated) memory and its utilization, then
    its temperature and power if there is room (i shows them at any width). In the table, CORES% is
    the share of the card that a container used in the last second, and 10s and 60s over these
    times; ~ marks a driver's figure. QUOTA% is the requested share, and THROT% the fraction of the
    last second that the container waited for the card. For a process, CORES% is the driver's
    figure, and its PID in the container is in parentheses. STATE is ok, paused, frozen, stopping,
    evicted, evicting, restoring or eviction failed (gpushare evict; "waits": a program waits for
    the restore), hung (work that appears never to complete), over quota, or warning (press i). USER
    and COMMAND are those of a process on this host.

    A terminal that is too narrow shows the first of NAME, MEMORY, CORES%, STATE, ISOLATION, QUOTA%,
    THROT%, POLICY, 10s, 60s, CLASS, USER and COMMAND. 80 columns are enough up to QUOTA%, except
    for long states and isolations. If there is no room for ISOLATION or STATE, the first line says
    so (below five lines, the last one).

    Above the table are evicted containers, with the size of their memory in host memory and since
    when, and the starts that wait for room, up to three of each.

    Enter shows graphs of the selected container and its card (memory and compute), or of a card
    (also temperature and power). They are made from the metrics history if you may read it,
    otherwise from what top has seen since it started. Left and right choose the range, from 10
    minutes to 7 days.

    Most keys are those of htop: arrows move, Space folds, s sorts, r reverses the order, / filters,
    t switches between tree and list, i shows details, + and - change the interval, h shows help, q
    quits. Enter is that of nvitop. Those that differ from nvitop are r (there: refresh), / (reverse
    the order), I and Ctrl-C (interrupt a process), Space (tag), o (a column follows), left and
    right (scroll).

    If gpushared stops, top keeps showing the last data and says so until gpushared is back.

    --json prints one document, as --once does.
    """
    view = TableView(sort=sort, filter=wanted, tree=not flat, interval=interval)
    if once or session.json:
        snapshot = with_commands(take_snapshot(session.client))
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        unicode = encoding == "utf8" and not ascii_only
        session.show(snapshot.document, lambda: plain_text(snapshot, view, unicode=unicode))
    else:
        state = UiState(view=view)
        source = GraphSource(lambda: _open_history(session))
        run(session.client, state, source, ascii_only=ascii_only)


def _open_history(session: Session) -> HistoryReader:
    """Open the metrics history of the running gpushared; UserError."""
    config = configuration.load(session.config_file())
    return HistoryReader(config.state_dir / FOLDER)


def run(client: Client, state: UiState, source: GraphSource, *, ascii_only: bool = False) -> None:
    """Run top until the user quits. Raises what the first snapshot raises."""
    check()  # before the daemon is asked: a problem with the terminal is reported first

    def take(interval: float) -> TopSnapshot:
        return source.with_graphs(with_commands(take_snapshot(client)), interval)

    poller = SnapshotPoller(take, take(state.view.interval), state.view.interval)
    received = 0
    with Terminal(ascii_only=ascii_only) as terminal:
        poller.start()
        try:
            received = _loop(state, poller, source, terminal)
        finally:
            poller.close()
    if received:
        os.kill(os.getpid(), received)  # so that the exit status shows the signal


def _loop(
    state: UiState,
    poller: SnapshotPoller,
    source: GraphSource,
    terminal: Terminal,
) -> int:
    """Return the signal that ended the loop, 0 if the user quit."""
    snapshot, away_since = poller.latest, 0.0
    while True:
        if (target := graph_target(state, snapshot)) != source.target:
            source.target = target
            if target is not None:
                poller.poll_now()
        shown = screen(state, snapshot, terminal, alarm(poller.error, away_since))
        state = replace(state, view=replace(state.view, top=shown.top, at=shown.at))
        signals = terminal.wait(poller.fd)
        if signal.SIGINT in signals:
            return 0
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if number in signals:
                return number
        if signal.SIGTSTP in signals:
            terminal.suspend()
        if signals & {signal.SIGWINCH, signal.SIGCONT}:
            terminal.resize()
        for key in terminal.read_keys():
            state, effect = press(state, key, snapshot, shown.page)
            if effect is ScreenAction.QUIT:
                return 0
            if effect is ScreenAction.REDRAW:
                terminal.redraw()
            if effect is not None:
                poller.interval = state.view.interval
                poller.poll_now()
        poller.acknowledge()
        snapshot = poller.latest
        away_since = (away_since or time.time()) if poller.error else 0.0


def screen(state: UiState, snapshot: TopSnapshot, terminal: Terminal, alarm: str) -> Frame:
    """Draw the screen for `state`; return the frame."""
    size = terminal.size
    footer: Line = ((prompt(state) or _HINT, "title" if prompt(state) else "dim"),)
    shown = frame(snapshot, state.view, size, alarm=alarm, footer=footer)
    if state.mode is InputMode.HELP:
        terminal.draw([((line, ""),) for line in help_lines(size)])
    elif state.mode is InputMode.GRAPHS:
        terminal.draw([fit(line, size) for line in graph_lines(snapshot.graphs, size, alarm)])
    else:
        terminal.draw(shown.lines)
    return shown


def help_lines(size: Size) -> list[str]:
    """Return the help page, wrapped to the terminal."""
    wrapped = [
        part
        for line in HELP.splitlines()
        for part in textwrap.wrap(line, max(size.columns, 4), subsequent_indent="  ") or [""]
    ]
    return [line[: size.columns] for line in wrapped[: size.lines]]


def alarm(error: str, since: float) -> str:
    """Return the line above outdated data, empty while the daemon responds."""
    if not error:
        return ""
    when = time.strftime("%H:%M:%S", time.localtime(since or time.time()))
    return f"no new data since {when}: {error}"


class SnapshotPoller:
    """Calls `take` every `interval` seconds, with that; `latest` is its last result.

    `fd` becomes readable after each call. If the call failed, `error` is the reason and `latest` is
    the last snapshot before it. Otherwise `error` is empty.
    """

    def __init__(
        self, take: Callable[[float], TopSnapshot], first: TopSnapshot, interval: float
    ) -> None:
        self.latest = first
        self.error = ""
        self.interval = interval
        self._take = take
        self._now = threading.Event()
        self._closed = False
        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def poll_now(self) -> None:
        """Poll at once, and every `interval` from then on."""
        self._now.set()

    def acknowledge(self) -> None:
        """Clear `fd` until the next poll."""
        while True:
            try:
                os.read(self.fd, 64)
            except BlockingIOError:
                return

    def close(self) -> None:
        """Stop polling, without waiting for a call in progress: the process exits."""
        self._closed = True
        self._now.set()

    def _run(self) -> None:
        while True:
            self._now.wait(self.interval)
            self._now.clear()
            if self._closed:
                return
            try:
                self.latest = self._take(self.interval)
                self.error = ""
            except (UserError, OSError) as error:
                self.error = str(error)
            self._notify()

    def _notify(self) -> None:
        try:
            os.write(self._write_fd, b".")
        except BlockingIOError:
            return  # the pipe is full: the reader is notified already
