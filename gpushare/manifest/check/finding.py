# SPDX-License-Identifier: Apache-2.0
"""A finding in a file, with its position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpushare.manifest.model import ManifestValue
from gpushare.quota.errors import refusal
from gpushare.yaml_nodes import YamlNode

#: error: refused, or without the effect that it is meant to have. warning: may be. info: a note.
FindingLevel: TypeAlias = Literal["error", "warning", "info"]

ERROR: Final[FindingLevel] = "error"
WARNING: Final[FindingLevel] = "warning"
INFO: Final[FindingLevel] = "info"


@dataclass(frozen=True, order=True)
class ManifestFinding:
    """An error or a note: line and column (0: none), key, value, rule and fix."""

    line: int
    column: int
    key: str
    rule: str
    fix: str
    value: str = ""
    level: FindingLevel = ERROR

    def __str__(self) -> str:
        """Return `gpushare.io/memory=4Q: not a size. Write e.g. 4GiB.` or alike."""
        text = self.rule
        if self.key:
            text = refusal(self.key, self.value or None, self.rule, self.fix)
        return text if self.level == ERROR else f"{self.level}: {text}"


def value_finding(
    key: str, value: ManifestValue, rule: str, fix: str, level: FindingLevel = ERROR
) -> ManifestFinding:
    """Return a finding where `value` stands."""
    return ManifestFinding(value.line, value.column, key, rule, fix, value.text, level)


def key_finding(
    key: str, value: ManifestValue, rule: str, fix: str, level: FindingLevel = ERROR
) -> ManifestFinding:
    """Return a finding where the key of `value` stands."""
    return node_finding(key, value.key_node, rule, fix, value=value.text, level=level)


def node_finding(  # noqa: PLR0913 - a finding's parts
    key: str, node: YamlNode, rule: str, fix: str, *, value: str = "", level: FindingLevel = ERROR
) -> ManifestFinding:
    """Return a finding where `node` begins."""
    return ManifestFinding(node.line, node.column, key, rule, fix, value, level)
