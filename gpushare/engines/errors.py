# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with an engine's configuration."""

from __future__ import annotations

from gpushare.errors import UserError


class BadConfiguration(Exception):
    """A configuration that cannot be edited: `line` (0: no one line) and what is wrong there."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(what)
        self.line = line


class EngineError(UserError):
    """An engine cannot be configured; names the file, the line and what to do."""
