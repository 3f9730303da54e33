# SPDX-License-Identifier: Apache-2.0
"""One thing that there is to say of a file, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import yaml

from gpushare.manifest.file import Value
from gpushare.quota.errors import printable, quoted

#: error: it is refused, or does not do what it says. warning: it may. info: as it is, to be known.
Level: TypeAlias = Literal["error", "warning", "info"]

ERROR: Final[Level] = "error"
WARNING: Final[Level] = "warning"
INFO: Final[Level] = "info"


@dataclass(frozen=True, order=True)
class Finding:
    """What is wrong, or to be known: line and column (0: of none), key, value, rule and fix."""

    line: int
    column: int
    key: str
    rule: str
    fix: str
    value: str = ""
    level: Level = ERROR

    def __str__(self) -> str:
        """Return `gpushare.io/memory: "4Q" is not a size; write e.g. 4GiB`."""
        said = f"{quoted(self.value)} {self.rule}" if self.value else self.rule
        fix = f"; {self.fix}" if self.fix else ""
        told = f"{printable(self.key)}: {said}{fix}" if self.key else f"{said}{fix}"
        return told if self.level == ERROR else f"{self.level}: {told}"


def of_value(key: str, value: Value, rule: str, fix: str, level: Level = ERROR) -> Finding:
    """Return a finding where `value` stands."""
    return Finding(value.line, value.column, key, rule, fix, value.text, level)


def of_key(key: str, value: Value, rule: str, fix: str, level: Level = ERROR) -> Finding:
    """Return a finding where the key of `value` stands."""
    return of_node(key, value.key_node, rule, fix, value=value.text, level=level)


def of_node(  # noqa: PLR0913 - a finding's parts
    key: str, node: yaml.Node, rule: str, fix: str, *, value: str = "", level: Level = ERROR
) -> Finding:
    """Return a finding where `node` begins."""
    mark = node.start_mark
    return Finding(mark.line + 1, mark.column + 1, key, rule, fix, value, level)
