# SPDX-License-Identifier: Apache-2.0
"""A YAML text: its content, and the line of each value.

Less than YAML, so that what is read is what was meant: a scalar is text unless it is null, `true`,
`false` or a decimal number (YAML 1.1 takes `on` for true, `010` for eight and `1:30` for ninety),
keys are text and come once, and there are no anchors, aliases and tags, by which a small file can
be a huge one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.errors import UserError
from gpushare.text_position import KeyPath, UnreadableText, at, key_of, read_text
from gpushare.yaml_nodes import YamlNode, YamlRules, parse

__all__ = ["MAX_DEPTH", "ConfigDocument", "ConfigError", "ConfigProblem", "KeyPath", "at", "key_of"]

MAX_BYTES: Final = 1 << 18
MAX_DEPTH: Final = 16

RULES: Final = YamlRules(MAX_DEPTH, plain=True)

_SCALARS: Final[tuple[tuple[re.Pattern[str], Callable[[str], object]], ...]] = (
    (re.compile(r"~|null|Null|NULL|"), lambda _: None),
    (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    (re.compile(r"-?(0|[1-9][0-9]{0,17})"), int),
    (re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?"), float),
)


@dataclass(frozen=True, order=True)
class ConfigProblem:
    """One problem: the line (0: no single line), the key, the rule and the fix."""

    line: int
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class ConfigError(UserError):
    """The configuration cannot be used; the text has a line for each problem, with its fix."""

    def __init__(self, file: Path, *problems: ConfigProblem) -> None:
        self.file = file
        self.problems = problems
        super().__init__("\n".join(f"{at(file, found.line)}: {found}" for found in problems))


def text_of(file: Path) -> str:
    """Return the text of `file`; ConfigError if it cannot be read."""
    try:
        return read_text(file, MAX_BYTES, "gpushare.yaml")
    except UnreadableText as error:
        problem = ConfigProblem(error.fault.line, "", error.fault.message)
        raise ConfigError(file, problem) from error


class ConfigDocument:
    """The content of a text. Problems are collected, so that all are reported at once."""

    def __init__(self, text: str, file: Path) -> None:
        self.file = file
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[ConfigProblem] = []
        try:
            roots = parse(text, RULES).roots
        except UnreadableText as error:
            raise ConfigError(
                file, ConfigProblem(error.fault.line, "", error.fault.message)
            ) from error
        content = self._value(roots[0], ()) if roots else None
        if content is not None and not isinstance(content, dict):
            text = "not a mapping; write lines like `max_tenants: 16`"
            raise ConfigError(file, ConfigProblem(1, "", text))
        self.content: dict[str, Any] = content or {}

    def at(self, place: KeyPath) -> Any:
        """Return the value at `place`; None where it, or a part of the way, is not there."""
        found: Any = self.content
        for part in place:
            if isinstance(found, dict):
                found = found.get(part)
            elif isinstance(found, list) and isinstance(part, int):
                found = found[part]
            else:
                return None
        return found

    def section(self, place: KeyPath) -> Mapping[str, Any]:
        """Return the mapping at `place`; empty where it is not there."""
        found = self.at(place)
        return found if isinstance(found, dict) else {}

    def line(self, place: KeyPath) -> int:
        """Return the line of the value at `place`, or of the nearest that is there around it."""
        around = (place[:length] for length in range(len(place), 0, -1))
        return next((self.lines[known] for known in around if known in self.lines), 0)

    def problem(self, place: KeyPath, text: str) -> None:
        """Record a problem at `place`."""
        self.problems.append(ConfigProblem(self.line(place), key_of(place), text))

    def _value(self, node: YamlNode, place: KeyPath) -> Any:
        if node.kind == "mapping":
            return self._mapping(node, place)
        if node.kind == "sequence":
            items = [((*place, number), item) for number, item in enumerate(node.items)]
            self.lines |= {path: item.line for path, item in items}
            return [self._value(item, path) for path, item in items]
        read = next((read for known, read in _SCALARS if known.fullmatch(node.text)), str)
        return node.text if node.style else read(node.text)

    def _mapping(self, node: YamlNode, place: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for entry in node.entries:
            line = entry.key.line
            if entry.key.kind != "scalar":
                problem = ConfigProblem(line, key_of(place), "a key must be plain text")
                self.problems.append(problem)
                continue
            path = (*place, entry.key.text)
            if path in self.lines:
                first = f"is a duplicate of line {self.lines[path]}; keep one"
                self.problems.append(ConfigProblem(line, key_of(path), first))
                continue
            self.lines[path] = line
            found[entry.key.text] = self._value(entry.value, path)
        return found
