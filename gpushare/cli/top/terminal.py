# SPDX-License-Identifier: Apache-2.0
"""The terminal: keys, lines, size and signals through curses. It is restored in every case.

Signal handlers only write to a pipe, and the main loop handles the signals: curses must not be
called from a handler. Because Python has handlers installed, curses installs none of its own.
"""

from __future__ import annotations

import contextlib
import curses
import locale
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Final

from gpushare.cli.top.render import Size
from gpushare.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpushare.cli.top.render import Line

_SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGWINCH,
    signal.SIGTSTP,
    signal.SIGCONT,
)
_ESCAPE_MS: Final = (
    25  # how long after ESC the rest of a key sequence may take; the default of curses is 1000
)

_KEYS: Final[Mapping[int, str]] = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_LEFT: "left",
    curses.KEY_RIGHT: "right",
    curses.KEY_PPAGE: "pageup",
    curses.KEY_NPAGE: "pagedown",
    curses.KEY_HOME: "home",
    curses.KEY_END: "end",
    curses.KEY_ENTER: "enter",
    curses.KEY_BACKSPACE: "backspace",
    **{curses.KEY_F0 + number: f"f{number}" for number in range(1, 13)},
}
_LETTERS: Final[Mapping[str, str]] = {
    "\r": "enter",
    "\n": "enter",
    "\x1b": "esc",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x01": "^a",
    "\x05": "^e",
    "\x0c": "^l",
    "\x15": "^u",
}
# Foreground by style, with 8 and with 256 colors.
_COLOURS: Final[Mapping[str, tuple[int, int]]] = {
    "good": (curses.COLOR_GREEN, 71),
    "warn": (curses.COLOR_YELLOW, 179),
    "bad": (curses.COLOR_RED, 203),
    "card": (curses.COLOR_CYAN, 74),
    "dim": (-1, 245),
}


class NoTerminal(UserError):
    """There is no suitable terminal; the text says what to do instead."""


class Terminal:
    """A full screen while the context is entered."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        self._attributes: dict[str, int] = {}
        self._handlers: dict[int, object] = {}
        self._read_fd = self._write_fd = self._wakeup = -1
        locale.setlocale(locale.LC_ALL, "")
        # Not the encoding of sys.stdout: curses uses the locale of the C library.
        utf_8 = locale.nl_langinfo(locale.CODESET).upper() == "UTF-8"
        self.unicode = utf_8 and not ascii_only

    def __enter__(self) -> Terminal:
        check()
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wakeup = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._handlers[number] = signal.signal(number, lambda *_: None)
        # curses prefers these to the terminal's own size, which is the only one that is current.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        try:
            self._screen = curses.initscr()
            self._begin()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    @property
    def size(self) -> Size:
        """The current size of the terminal."""
        lines, columns = self._screen.getmaxyx()
        return Size(columns, lines, self.unicode)

    def draw(self, lines: Sequence[Line]) -> None:
        """Show `lines`, which must fit the terminal; only differences are written."""
        self._screen.erase()
        for row, line in enumerate(lines):
            self._screen.move(row, 0)
            for text, style in line:
                try:
                    self._screen.addstr(text, self._attributes.get(style, 0))
                except curses.error:
                    break  # last cell of the last line: the cursor cannot advance
        self._screen.refresh()

    def redraw(self) -> None:
        """Write the whole screen at the next `draw`."""
        self._screen.clearok(True)

    def wait(self, fd: int) -> set[int]:
        """Wait for a key, a signal, or for `fd` to become readable; return the signals."""
        readable, _, _ = select.select([sys.stdin.fileno(), self._read_fd, fd], [], [])
        return set(os.read(self._read_fd, 4096)) if self._read_fd in readable else set()

    def read_keys(self) -> list[str]:
        """Return the pressed keys without waiting."""
        found = []
        while (key := self._key()) is not None:
            found.append(key)
        return [key for key in found if key]

    def resize(self) -> None:
        """Adopt the new size of the terminal."""
        size = os.get_terminal_size(sys.stdout.fileno())
        curses.resizeterm(max(size.lines, 1), max(size.columns, 1))
        self.redraw()

    def suspend(self) -> None:
        """Return the terminal to the shell, stop until SIGCONT, and take the terminal again."""
        curses.endwin()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, lambda *_: None)
        curses.doupdate()
        self.resize()

    def _begin(self) -> None:
        curses.noecho()
        curses.cbreak()
        curses.set_escdelay(_ESCAPE_MS)
        self._screen.keypad(True)
        self._screen.nodelay(True)
        self._screen.leaveok(True)
        with contextlib.suppress(curses.error):  # a terminal that cannot hide its cursor
            curses.curs_set(0)
        self._attributes = _attributes()

    def _key(self) -> str | None:
        """Return the next key, "" for a key without a name here, None if there is none."""
        try:
            found = self._screen.get_wch()
        except curses.error:
            return None
        if isinstance(found, int):
            return _KEYS.get(found, "")
        return _LETTERS.get(found, found if found.isprintable() else "")

    def _leave(self) -> None:
        if not curses.isendwin():
            curses.endwin()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup)
        for fd in (self._read_fd, self._write_fd):
            os.close(fd)


def check() -> None:
    """Raise NoTerminal if there is no terminal that curses supports."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NoTerminal("top requires a terminal. Use --once or --json.")
    term = os.environ.get("TERM", "")
    try:
        curses.setupterm(term or "unknown", sys.stdout.fileno())
    except curses.error:
        fix = "Set TERM (xterm-256color works for most), or use --once."
        raise NoTerminal(f"TERM={term}: not known on this machine. {fix}") from None
    if curses.tigetstr("cup") is None:
        raise NoTerminal(f"TERM={term}: cannot move the cursor. Use --once, or another terminal.")


def _attributes() -> dict[str, int]:
    """Return the curses attributes by style. NO_COLOR (no-color.org): only bold and reverse."""
    found = {
        "title": curses.A_BOLD,
        "card": curses.A_BOLD,
        "heading": curses.A_REVERSE,
        "selected": curses.A_REVERSE | curses.A_BOLD,
        "warn": curses.A_BOLD,
        "bad": curses.A_BOLD,
        "dim": curses.A_DIM,
    }
    if os.environ.get("NO_COLOR"):
        return found
    curses.start_color()
    if not curses.has_colors():
        return found
    curses.use_default_colors()
    for pair, (style, (few, many)) in enumerate(_COLOURS.items(), start=1):
        colour = many if curses.COLORS >= 256 else few
        if colour == -1:
            continue
        curses.init_pair(pair, colour, -1)
        bold = curses.A_BOLD if style in {"bad", "card"} else 0
        found[style] = curses.color_pair(pair) | bold
    return found
