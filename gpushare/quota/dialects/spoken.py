# SPDX-License-Identifier: Apache-2.0
"""What a container says in one dialect, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.quota.dialects.row import Dialect, Word
from gpushare.quota.errors import QuotaError
from gpushare.quota.quota import Layer


@dataclass(frozen=True)
class Problem:
    """A word that is refused: the rule that it breaks and the fix."""

    word: Word
    rule: str
    fix: str

    def error(self) -> QuotaError:
        """Return it as the error that a create fails with."""
        return QuotaError(shown(self.word), self.word.text, self.rule, self.fix)


@dataclass(frozen=True)
class Spoken:
    """What a container says in one dialect. `layer` is empty where nothing of it asks.

    `meant` says for a word what became of it, by its name: canonical `key=text`, or why nothing.
    """

    dialect: Dialect
    words: tuple[Word, ...]
    layer: Layer
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    meant: Mapping[str, str] = field(default_factory=dict)


def shown(word: Word) -> str:
    """Return `env CUDA_DEVICE_MEMORY_LIMIT (HAMi)`."""
    return f"{word.source} ({word.dialect.title})"
