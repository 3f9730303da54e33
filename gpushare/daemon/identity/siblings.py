# SPDX-License-Identifier: Apache-2.0
"""Containers that were refused what another of their pod had, so that they do not get it later.

Without it, whichever happens to start while the other is down would take its place.
"""

from __future__ import annotations

from typing import Final

_MOST: Final = 4096  # pods; the one that was noted first is forgotten


class Siblings:
    """By sandbox: the container that was refused, and the one that had it; the decide thread's.

    A restart of the daemon forgets it. Who has it is in the ledger, and so is refused to others
    again as soon as they ask.
    """

    def __init__(self) -> None:
        self._refused: dict[str, dict[str, str]] = {}

    def note(self, sandbox: str, container: str, holder: str) -> None:
        """Note that `container` was refused what `holder` had."""
        self._refused.setdefault(sandbox, {}).setdefault(container, holder)
        if len(self._refused) > _MOST:
            del self._refused[next(iter(self._refused))]

    def before(self, sandbox: str, container: str) -> str:
        """Return who had what `container` was refused; empty where it never was."""
        return self._refused.get(sandbox, {}).get(container, "")
