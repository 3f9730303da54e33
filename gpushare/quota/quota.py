# SPDX-License-Identifier: Apache-2.0
"""What a container asks for, in canonical keys, each value with where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gpushare.quota.errors import QuotaError

Value: TypeAlias = "int | str | tuple[str, ...]"
SourceKind: TypeAlias = Literal[
    "operator",
    "annotation",
    "pod annotation",
    "env",
    "option",
    "default",
    # Of a manifest; no runtime hears of them.
    "limit",
    "label",
    "node label",
    "node annotation",
    "node file",
    "plugin",
    "claim",
    "task",
]


@dataclass(frozen=True)
class Source:
    """Where a value was written: `annotation gpushare.io/memory`, `env GPUSHARE_MEMORY`.

    A canonical key of a command line is its option, `--memory`; what nobody asked for is the
    node's own word, `default defaults.memory`.
    """

    kind: SourceKind
    name: str

    def __str__(self) -> str:
        return f"--{self.name}" if self.kind == "option" else f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Asked:
    """One value in canonical text, what it means, and where it was said.

    `written` is the text as it was, where another system's key said it in its own unit.
    """

    text: str
    value: Value
    source: Source
    written: str = ""

    @property
    def shown(self) -> str:
        """The text that the user knows, because he wrote it."""
        return self.written or self.text


#: What one source asks for, by canonical key.
Layer: TypeAlias = "dict[str, Asked]"


@dataclass(frozen=True)
class Quota:
    """What was asked. A key that nobody set is None (or an empty tuple).

    memory_bytes, memory_percent and memory_limit_bytes are per card; cores is percent of a card,
    1..100; devices are indices or UUIDs; allow and deny are models or UUIDs; priority 0 is the
    highest. `asked` has one entry per key that is set, by canonical name (`memory-limit`).
    `notes` says which values of a lower source were not taken, and why. `unnamed` is an
    annotation of the pod that names no container, where no other does: for the only one that asks.
    `beneath` is what would be asked without the operator's word.
    """

    memory_bytes: int | None = None
    memory_percent: int | None = None
    memory_limit_bytes: int | None = None
    cores: int | None = None
    count: int | None = None
    devices: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    policy: str | None = None
    weight: int | None = None
    priority: int | None = None
    class_: str | None = None
    placement: str | None = None
    numa: str | None = None
    oversubscribe: str | None = None
    backend: str | None = None
    asked: Mapping[str, Asked] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    beneath: Mapping[str, Asked] = field(default_factory=dict)
    unnamed: Asked | None = None

    def has_memory(self) -> bool:
        """Whether memory is asked for, as a size or as a percentage."""
        return self.memory_bytes is not None or self.memory_percent is not None

    def is_set(self, key: str) -> bool:
        """Whether `key` is the operator's word, which no ceiling bounds."""
        return key in self.asked and self.asked[key].source.kind == "operator"

    def rows(self) -> dict[str, str]:
        """Return `{"memory": "4GiB annotation"}`: each key as asked and the kind of its source."""
        return {key: f"{asked.text} {asked.source.kind}" for key, asked in self.asked.items()}

    def rows_beneath(self) -> dict[str, str]:
        """Return the same of what would be asked without the operator's word."""
        return {key: f"{asked.text} {asked.source.kind}" for key, asked in self.beneath.items()}

    def refuse(self, key: str, rule: str, fix: str) -> QuotaError:
        """Return the error that refuses `key` as it was asked; the caller raises it."""
        asked = self.asked.get(key)
        if asked is None:
            return QuotaError(key, None, rule, fix)
        return QuotaError(str(asked.source), asked.shown, rule, fix)
