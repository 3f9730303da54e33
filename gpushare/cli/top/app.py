# SPDX-License-Identifier: Apache-2.0
"""The loop: a key, a signal or a picture comes, and the screen is drawn."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpushare.cli.top.detail import CHANGES, HELP
from gpushare.cli.top.draw import Frame, frame
from gpushare.cli.top.feed import Feed
from gpushare.cli.top.keys import Change, Do, Mode, Signal, State, press, prompt
from gpushare.cli.top.picture import look
from gpushare.cli.top.terminal import Terminal, check
from gpushare.errors import UserError

if TYPE_CHECKING:
    from gpushare.cli.top.draw import Line
    from gpushare.cli.top.keys import Effect
    from gpushare.cli.top.picture import Picture
    from gpushare.client import Client

_HINT = "q quit  Enter fold  s sort  r reverse  / filter  t tree  i detail  h help"


def run(client: Client, state: State, *, ascii_only: bool = False) -> None:
    """Show the machine until the user has seen enough. Raises what the first look does."""
    check()  # before the daemon is asked: what is in the way here, is said first
    feed = Feed(lambda: look(client), look(client), state.view.interval)
    ended = 0
    with Terminal(ascii_only=ascii_only) as terminal:
        feed.start()
        try:
            ended = _loop(client, state, feed, terminal)
        finally:
            feed.close()
    if ended:
        os.kill(os.getpid(), ended)  # so that who sent it sees that it was obeyed


def _loop(client: Client, state: State, feed: Feed, terminal: Terminal) -> int:
    """Return the signal that ended it, 0 where the user did."""
    picture, away_since = feed.latest, 0.0
    while True:
        shown = screen(state, picture, terminal, alarm(feed.away, away_since))
        state = replace(state, view=replace(state.view, top=shown.top, at=shown.at))
        signals = terminal.wait(feed.fd)
        if signal.SIGINT in signals:
            return 0
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if number in signals:
                return number
        if signal.SIGTSTP in signals:
            terminal.stop()
        if signals & {signal.SIGWINCH, signal.SIGCONT}:
            terminal.resized()
        for key in terminal.pressed():
            state, effect = press(state, key, picture, shown.page)
            if effect is Do.QUIT:
                return 0
            if effect is Do.REDRAW:
                terminal.redraw()
            state = _done(client, state, effect)
            if effect is not None:
                feed.interval = state.view.interval
                feed.look_now()
        feed.taken()
        picture = feed.latest
        away_since = (away_since or time.time()) if feed.away else 0.0


def screen(state: State, picture: Picture, terminal: Terminal, alarm: str) -> Frame:
    """Draw the screen of `state`; return what it was made of."""
    size = terminal.size
    footer: Line = ((prompt(state) or state.message or _HINT, "title" if prompt(state) else "dim"),)
    shown = frame(picture, state.view, size, alarm=alarm, footer=footer)
    if state.mode is Mode.HELP:
        text = (HELP + CHANGES if state.may_change else HELP).splitlines()
        lines = [((line[: size.columns], ""),) for line in text[: size.lines]]
        terminal.draw(lines)
    else:
        terminal.draw(shown.lines)
    return shown


def alarm(away: str, since: float) -> str:
    """Return what stands above the last picture when the daemon is away, empty when it is not."""
    if not away:
        return ""
    when = time.strftime("%H:%M:%S", time.localtime(since or time.time()))
    return f"the last picture, from before {when}: {away}"


def _done(client: Client, state: State, effect: Effect) -> State:
    try:
        if isinstance(effect, Signal):
            _send(client, effect)
        elif isinstance(effect, Change):
            _change(client, effect)
        else:
            return state
    except (UserError, OSError) as error:
        said = error.strerror if isinstance(error, OSError) else None
        return replace(state, message=f"not done: {said or error}")
    return replace(state, message=f"done: {effect}")


def _send(client: Client, asked: Signal) -> None:
    """Send a signal to the process that was looked at, and to none that has its number since.

    What the descriptor stands for was the tenant's when the daemon said so, if it lives after that.
    """
    fd = os.pidfd_open(asked.process.pid)
    try:
        now = client.tenant(asked.container.id)["processes"]
        same = (asked.process.pid, asked.process.container_pid, asked.process.name)
        there = any((row["pid"], row["container_pid"], row["name"]) == same for row in now)
        if not there or select.select([fd], [], [], 0)[0]:
            raise UserError(f"process {asked.process.pid} has ended")
        signal.pidfd_send_signal(fd, asked.number)
    finally:
        os.close(fd)


def _change(client: Client, asked: Change) -> None:
    cores = None if asked.cores is None else str(asked.cores)
    client.set(asked.container.id, policy=asked.policy, cores=cores)
