# SPDX-License-Identifier: Apache-2.0
"""A command of protocol 3, and what it prints."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.simulator.mps_settings import MpsCommandError
from gpushare.simulator.mps_state import ControlDaemon

Rows = list[dict[str, str]]


@dataclass(frozen=True)
class ModuleRequest:
    """A command: positional words, options, and who sent it."""

    module: str
    verb: str
    words: list[str]
    options: dict[str, str]
    uid: int

    def word(self, number: int, what: str) -> str:
        """Return a positional argument; MpsCommandError where it is missing."""
        if len(self.words) <= number:
            raise MpsCommandError(f"{self.module} {self.verb}: {what} is missing")
        return self.words[number]

    def option(self, name: str) -> str:
        """Return an option; MpsCommandError where it is missing."""
        if name not in self.options:
            raise MpsCommandError(f"{self.module} {self.verb}: --{name} is missing")
        return self.options[name]

    def check_owner(self, owner: int) -> None:
        """Refuse whoever is neither the owner of a server nor the daemon's user."""
        if self.uid not in (owner, os.geteuid()):
            command = f"{self.module} {self.verb}".upper()
            raise MpsCommandError(
                f"Insufficient privileges for UID {self.uid}. '{command}' requires server owner."
            )


def table_of(rows: Rows, form: str) -> str:
    """Return rows in the form `table` or `csv`, with `,noheader` without names; MpsCommandError."""
    kind, _, header = form.partition(",")
    if kind not in ("table", "csv") or header not in ("", "noheader") or not rows:
        if rows:
            raise MpsCommandError(f"--format={form}: not table or csv")
        return ""
    lines = [list(row.values()) for row in rows]
    if not header:
        # The names of fields, but those of namespaces are printed as words.
        words = "server-status" in rows[0]
        names = (name.replace("-", " ") if words else name for name in rows[0])
        lines.insert(0, [name.upper() for name in names])
    if kind == "csv":
        return "\n".join(map(",".join, lines))
    # A table shortens what is too long.
    return "\n".join(
        " ".join(f"{word if len(word) < 16 else f'{word[:12]}...':<16}" for word in line).rstrip()
        for line in lines
    )


def field_of(rows: Rows, name: str) -> str:
    """Return a field of the one row; MpsCommandError where there is none."""
    if not rows or name not in rows[0]:
        raise MpsCommandError(f"{name}: no such field")
    return rows[0][name]


#: The function that carries a command out, and the options that it has.
Command = tuple[Callable[[ControlDaemon, ModuleRequest], "str | Rows"], tuple[str, ...]]
