# SPDX-License-Identifier: Apache-2.0
"""Why a quota is refused, in the words the user reads."""

from __future__ import annotations


class BadValue(ValueError):
    """A text that is no value of its kind: `rule` says why, `fix` what to write instead.

    The parsers of single values raise it; they do not know where the text came from.
    """

    def __init__(self, rule: str, fix: str) -> None:
        super().__init__(f"{rule}; {fix}")
        self.rule = rule
        self.fix = fix


class QuotaError(ValueError):
    """A quota that is refused: where it was asked, the value, the rule it breaks and the fix.

    `str()` is one line without the leading `gpushare: `, which the program that prints it adds.
    """

    def __init__(self, where: str, value: str | None, rule: str, fix: str) -> None:
        shown = rule if value is None else f"{quoted(value)} {rule}"
        super().__init__(f"{printable(where)}: {shown}; {fix}")
        self.where = where
        self.value = value
        self.rule = rule
        self.fix = fix


def quoted(value: str, limit: int = 80) -> str:
    """Return `value` in double quotes on one line, at most `limit` characters of it.

    A value comes from an image or a pod: it must not forge a second line in a log.
    """
    return '"' + printable(value, limit).replace('"', '\\"') + '"'


def printable(text: str, limit: int = 200) -> str:
    """Return `text` without control characters, at most `limit` characters of it."""
    shown = text if len(text) <= limit else text[:limit] + "..."
    return "".join(c if c.isprintable() and c != "\\" else ascii(c)[1:-1] for c in shown)
