# SPDX-License-Identifier: Apache-2.0
"""Errors that are shown to the user without a traceback, their codes, and the exit statuses.

docs/reference/exit-status.md is made from the two enumerations.
"""

from __future__ import annotations

import sys
from enum import Enum, IntEnum
from typing import NoReturn


class ExitStatus(IntEnum):
    """The exit statuses of all programs; `gpushare run` has those of its command, and docker's."""

    SUCCESS = 0
    ERROR = 1
    USAGE = 2
    REFUSED = 3
    DEGRADED = 4
    INTERRUPTED = 130  # as in a shell: 128 and SIGINT


class ErrorCode(Enum):
    """The class of an error: its name in JSON, and the exit status of a command that ends so."""

    USAGE = ("usage", ExitStatus.USAGE)
    NOT_FOUND = ("not-found", ExitStatus.ERROR)
    INVALID = ("invalid", ExitStatus.ERROR)
    UNREACHABLE = ("unreachable", ExitStatus.ERROR)
    REFUSED = ("refused", ExitStatus.REFUSED)
    FORBIDDEN = ("forbidden", ExitStatus.REFUSED)
    FAILED = ("failed", ExitStatus.ERROR)
    INTERNAL = ("internal", ExitStatus.ERROR)
    INTERRUPTED = ("interrupted", ExitStatus.INTERRUPTED)

    def __init__(self, text: str, status: ExitStatus) -> None:
        self.text = text
        self.status = status


class UserError(Exception):
    """An error for the user; its message has the problem, the value and the fix.

    `key`, `value` and `fix` are for programs, where the error is about one key.
    """

    code = ErrorCode.FAILED

    def __init__(
        self,
        message: str = "",
        *,
        code: ErrorCode | None = None,
        key: str | None = None,
        value: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code or self.code
        self.key = key
        self.value = value
        self.fix = fix


def exit_with(error: UserError, program: str) -> NoReturn:
    """End a service that cannot start: a line on stderr, and the exit status of the error."""
    sys.stderr.write(f"{program}: {error}\n")
    sys.exit(error.code.status)
