# SPDX-License-Identifier: Apache-2.0
"""A program on a terminal: a pty, and an emulator that says what a user would see."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING, Final

import pyte

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PATIENCE_SECONDS: Final = 20.0
KEYS: Final = {
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "enter": "\r",
    "esc": "\x1b",
    "end": "\x1b[4~",
}
_OF_A_TERMINAL: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
TERM: Final = "linux"  # what pyte understands all of


class Emulator:
    """Runs `argv` on a terminal of its own until the block ends; `raw` is all that it wrote."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        columns: int = 80,
        lines: int = 24,
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)
        self._ended: int | None = None
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            try:
                for number in _OF_A_TERMINAL:  # ignored where the tests were started with nohup
                    signal.signal(number, signal.SIG_DFL)
                _resize(0, columns, lines)  # before the program asks for it
                for name in ("COLUMNS", "LINES"):  # programs prefer them to the terminal's size
                    os.environ.pop(name, None)
                os.execvpe(argv[0], list(argv), {**os.environ, "TERM": TERM, **env})
            finally:
                os._exit(127)

    def __enter__(self) -> Emulator:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ended is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    @property
    def modes(self) -> list[object]:
        """The terminal's modes, as its line discipline has them."""
        return [*termios.tcgetattr(self._fd)]

    def press(self, *keys: str) -> None:
        """Type `keys`: letters, or names of KEYS."""
        for key in keys:
            os.write(self._fd, KEYS.get(key, key).encode())

    def resize(self, columns: int, lines: int) -> None:
        """Make the terminal of another size."""
        self.screen.resize(lines, columns)
        _resize(self._fd, columns, lines)

    def until(self, holds: Callable[[str], bool]) -> str:
        """Return the screen once `holds` is true of it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds(self.text):
            assert time.monotonic() < deadline, f"the screen stayed\n{self.text}"
            self._read(0.1)
        return self.text

    def keep(self, seconds: float) -> None:
        """Look on for `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def end(self) -> int:
        """Wait for its end; return the exit status, or minus the signal."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._ended is None:
            assert time.monotonic() < deadline, f"it did not end\n{self.text}"
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = os.waitstatus_to_exitcode(status)
            self._read(0.05)
        self._drain()
        return self._ended

    def terminate(self) -> None:
        """Have it end by itself: what is killed writes no record of what it executed."""
        if self._ended is None:
            os.kill(self.pid, signal.SIGTERM)
            self.end()

    def _drain(self) -> None:
        while self._read(0.0):
            pass

    def _read(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], seconds)[0]:
            return False
        try:
            found = os.read(self._fd, 65536)
        except OSError:  # EIO: no process has the other side any more
            return False
        self.raw += found
        self._stream.feed(found)
        return bool(found)


def _resize(fd: int, columns: int, lines: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
