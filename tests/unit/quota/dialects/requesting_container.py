# SPDX-License-Identifier: Apache-2.0
"""What a container says, for tests of a vendor's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from gpushare.quota.dialects import TABLES, DialectRequest, KeyLocation, combine

Words: TypeAlias = Mapping[KeyLocation, Mapping[str, str]]


def all_said(words: Words, *, strict: bool = True, at: int | None = 0) -> list[DialectRequest]:
    """Return what `words` say, by dialect; `at` is the container's place in its pod."""
    found = [word for where, values in words.items() for word in TABLES.find(where, values)]
    return combine(found, strict=strict, position=at)


def said(words: Words, *, strict: bool = True, at: int | None = 0) -> DialectRequest:
    """Return what `words`, of one dialect, say."""
    [spoken] = all_said(words, strict=strict, at=at)
    return spoken


def asked(words: Words, *, strict: bool = True, at: int | None = 0) -> dict[str, str]:
    """Return the canonical texts that `words` come to, with nothing refused."""
    spoken = said(words, strict=strict, at=at)
    assert not spoken.problems
    return {key: one.text for key, one in spoken.layer.items()}


def refusal(words: Words, *, strict: bool = True, at: int | None = 0) -> str:
    """Return the only refusal of `words`."""
    [problem] = said(words, strict=strict, at=at).problems
    return str(problem.error)


def note(words: Words) -> str:
    """Return the only note that a lenient node makes of `words`, which it gives."""
    spoken = said(words, strict=False)
    assert spoken.layer
    assert not spoken.problems
    [found] = spoken.notes
    return found
