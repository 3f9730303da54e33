# SPDX-License-Identifier: Apache-2.0
"""A YAML text of ours: what it says, and in which line it says it.

Less than YAML, so that what is read is what was meant: a scalar is text unless it is null, `true`,
`false` or a decimal number (YAML 1.1 takes `on` for true, `010` for eight and `1:30` for ninety),
keys are text and come once, and there are no anchors, aliases and tags, by which a small file can
be a huge one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.errors import UserError
from gpushare.marks import Place, at, fault_of, key_of

__all__ = ["MAX_DEPTH", "ConfigError", "Document", "Place", "Problem", "at", "key_of"]

MAX_DEPTH: Final = 16

_NULL: Final = "tag:yaml.org,2002:null"
_BOOL: Final = "tag:yaml.org,2002:bool"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong: the line (0: of no one line), the key, the rule and the fix."""

    line: int
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class ConfigError(UserError):
    """The configuration cannot be used; the text has a line for each problem, with its fix."""

    def __init__(self, file: Path, *problems: Problem) -> None:
        self.file = file
        self.problems = problems
        super().__init__("\n".join(f"{at(file, found.line)}: {found}" for found in problems))


class _Loader(yaml.SafeLoader):
    """Composes nodes of the part of YAML that we take."""

    # What SafeLoader would resolve to dates, sets, octal numbers and the rest stays text.
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node; ComposerError for an alias and for what is too deep."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        told = ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            told = "anchors and aliases (&name, *name) are not taken; write the value out"
        elif getattr(event, "tag", None):
            told = "tags (!name) are not taken; write the value alone"
        elif self._depth >= MAX_DEPTH:
            told = f"nested more than {MAX_DEPTH} deep"
        if told:
            raise yaml.composer.ComposerError(None, None, told, event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


for _tag, _pattern, _first in (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"-?(0|[1-9][0-9]{0,17})", list("-0123456789")),
    (_FLOAT, r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?", list("-0123456789")),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)


class Document:
    """What a text says. Problems are collected, so that all of them can be told at once."""

    def __init__(self, text: str, file: Path) -> None:
        self.file = file
        self.lines: dict[Place, int] = {}
        self.problems: list[Problem] = []
        try:
            node = _Loader(text).get_single_node()
        except yaml.YAMLError as error:
            fault = fault_of(error, text)
            raise ConfigError(file, Problem(fault.line, "", fault.told)) from error
        content = None if node is None else self._value(node, ())
        if content is not None and not isinstance(content, dict):
            told = "not a mapping; write lines like `max_shares: 16`"
            raise ConfigError(file, Problem(1, "", told))
        self.content: dict[str, Any] = content or {}

    def at(self, place: Place) -> Any:
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

    def section(self, place: Place) -> Mapping[str, Any]:
        """Return the mapping at `place`; empty where it is not there."""
        found = self.at(place)
        return found if isinstance(found, dict) else {}

    def line(self, place: Place) -> int:
        """Return the line of the value at `place`, or of the nearest that is there around it."""
        around = (place[:length] for length in range(len(place), 0, -1))
        return next((self.lines[known] for known in around if known in self.lines), 0)

    def problem(self, place: Place, text: str) -> None:
        """Note what is wrong at `place`."""
        self.problems.append(Problem(self.line(place), key_of(place), text))

    def _value(self, node: yaml.Node, place: Place) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            items = [((*place, number), item) for number, item in enumerate(node.value)]
            self.lines |= {here: item.start_mark.line + 1 for here, item in items}
            return [self._value(item, here) for here, item in items]
        text = str(node.value)
        if node.tag == _NULL:
            return None
        if node.tag == _BOOL:
            return text.lower() == "true"
        if node.tag == _INT:
            return int(text)
        return float(text) if node.tag == _FLOAT else text

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(line, key_of(place), "a key is one word of text"))
                continue
            here = (*place, key.value)
            if here in self.lines:
                first = f"is there twice, first in line {self.lines[here]}; keep one"
                self.problems.append(Problem(line, key_of(here), first))
                continue
            self.lines[here] = line
            found[key.value] = self._value(value, here)
        return found
