# SPDX-License-Identifier: Apache-2.0
"""Draws `gpushare top` as docs show it: a terminal in front of a daemon with simulated cards.

sudo .venv/bin/python -m tests.picture
"""

from __future__ import annotations

import io
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

from gpushare.verify.runners import spawn

from .emulator import Emulator
from .stack import Stack

PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"
NAME: Final = "top.svg"
COLUMNS: Final = 112
LINES: Final = 22
GIB: Final = 1 << 30
KERNEL_NS: Final = 1_000_000
WORK_NS: Final = 60 * 10**9
SLOW: Final = 3  # the machine that draws has other things to do: its delays are a third so large
SETTLED_SECONDS: Final = 12.0  # the ten seconds of the table are of all of them at work
# Of the card that each is on: name, quota, and what it has taken of its memory.
TENANTS: Final = (
    ("train", {"memory": "40GiB", "cores": "30", "policy": "fixed-share", "devices": "0"}, 37),
    ("serve", {"memory": "48GiB", "cores": "50", "policy": "burst-share", "devices": "0"}, 29),
    ("notebook", {"memory": "16GiB", "devices": "0"}, 3),
    ("batch", {"memory": "80GiB", "devices": "1"}, 64),
)


def main() -> int:
    """Draw it anew."""
    with Stack(cards=2, time_scale=SLOW) as stack, ExitStack() as running:
        stack.start_daemon()
        put_to_work(stack, running)
        record(look(stack), PICTURES / NAME)
    sys.stdout.write(f"wrote {PICTURES / NAME}\n")
    return 0


def put_to_work(stack: Stack, running: ExitStack) -> None:
    """Start the tenants, which end with `running`."""
    for name, quota, taken in TENANTS:
        tenant = running.enter_context(spawn(stack.host(), name, quota))
        tenant.start()
        tenant.ask(f"alloc {taken * GIB}")
        tenant.tell(f"busy {KERNEL_NS} {WORK_NS}")


def look(stack: Stack) -> Text:
    """Return what a user sees once the figures are of tenants at work."""
    argv = [*stack.cli, "top"]
    env = {**stack.environment, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    with Emulator(argv, env, columns=COLUMNS, lines=LINES) as terminal:
        terminal.until(lambda screen: "notebook" in screen)
        terminal.keep(SETTLED_SECONDS)
        terminal.press("\x0c", "\x1bOB", "\x1bOB", "\x1bOB", "i")
        terminal.until(lambda screen: "share    burst-share" in screen)
        return drawn(terminal.screen)


def drawn(screen: pyte.Screen) -> Text:
    """Return a screen with its colours."""
    text = Text()
    for row in range(screen.lines):
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            style = Style(color=_colour(cell.fg), bold=cell.bold, reverse=cell.reverse)
            text.append(cell.data, style)
        text.append("\n")
    return text


def record(text: Text, path: Path) -> None:
    """Write `text` as an SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(text, end="")
    console.save_svg(str(path), title="gpushare top")


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    return f"#{name}" if len(name) == 6 and name not in _NAMES else _NAMES.get(name, name)


_NAMES: Final = {"brown": "yellow", "yellow": "yellow"}  # pyte's word for colour 3

if __name__ == "__main__":
    sys.exit(main())
