# SPDX-License-Identifier: Apache-2.0
"""Errors for refused quotas, as users read them."""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r"[\w.,:;/%@+*=|-]+", re.ASCII).fullmatch


class BadValue(ValueError):
    """An invalid text: `rule` is the reason, `fix` what to write instead.

    The parsers of single values raise it; they do not know where the text came from.
    """

    def __init__(self, rule: str, fix: str) -> None:
        super().__init__(f"{rule}; {fix}")
        self.rule = rule
        self.fix = fix


class QuotaError(ValueError):
    """A refused quota: where it was requested, the value, the rule that it breaks and the fix.

    `str()` is one line without the leading `gpushare: `, which the program that prints it adds.
    """

    def __init__(self, where: str, value: str | None, rule: str, fix: str) -> None:
        super().__init__(refusal(where, value, rule, fix))
        self.where = where
        self.value = value
        self.rule = rule
        self.fix = fix


def refusal(where: str, value: str | None, rule: str, fix: str) -> str:
    """Return a refusal such as `GPUSHARE_MEMORY=4Q: not a size. Write e.g. 4GiB.`, one line.

    `rule` is a predicate (`is not a size`), so that notes can put it into a sentence; after the
    colon its `is` is left out.
    """
    key, opening, title = printable(where).partition(" (")
    if value is not None:
        key += f"={printable(value, 80) if _PLAIN(value) else quoted(value)}"
    stop = "" if fix.endswith(("?", ".")) else "."
    advice = f" {fix[0].upper()}{fix[1:]}{stop}" if fix else ""
    return f"{key}{opening}{title}: {rule.removeprefix('is ')}.{advice}"


def quoted(value: str, limit: int = 80) -> str:
    """Return `value` in double quotes on one line, at most `limit` characters of it.

    A value comes from an image or a pod: it must not forge a second line in a log.
    """
    return '"' + printable(value, limit).replace('"', '\\"') + '"'


def printable(text: str, limit: int = 200) -> str:
    """Return `text` without control characters, at most `limit` characters of it."""
    shown = text if len(text) <= limit else text[:limit] + "..."
    return "".join(c if c.isprintable() and c != "\\" else ascii(c)[1:-1] for c in shown)
