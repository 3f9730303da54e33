# SPDX-License-Identifier: Apache-2.0
"""Edits TOML text, table by table, without changing any other byte.

tomlkit parses the text, and the edits are made in the text, which keeps comments and layout. The
result is parsed again and must have exactly the wanted content (`verified`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

from gpushare.engines.config_files import BadConfiguration, naming, read_text

TomlTable = dict[str, Any]
TomlKey = tuple[str, ...]

_HEADER: Final = re.compile(r"\s*\[(?!\[)(?P<name>.+)\]\s*(#.*)?")


@dataclass(frozen=True)
class Section:
    """A table of the file: its name in parts, its header's line and the line after its last."""

    name: TomlKey
    start: int
    end: int


def parse(text: str) -> TomlTable:
    """Return the content of `text`; BadConfiguration with the line if it is not TOML."""
    try:
        return tomlkit.parse(text).unwrap()
    except TOMLKitError as error:
        raise BadConfiguration(str(error), getattr(error, "line", 0)) from error


def read(path: Path) -> TomlTable:
    """Return the content of the file at `path`, empty if it does not exist; EngineError."""
    with naming(path):
        return parse(read_text(path))


def table_at(table: TomlTable, path: TomlKey) -> TomlTable:
    """Return the table at `path`, which is created if it does not exist."""
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise BadConfiguration(f"{name} is not a table")
    return table


def format_table(name: TomlKey, content: TomlTable) -> str:
    """Return `content` as text with the header `name`, followed by its subtables."""
    lines = [f"[{'.'.join(_key(part) for part in name)}]"]
    lines += [
        f"  {_key(key)} = {tomlkit.item(value).as_string()}"
        for key, value in content.items()
        if not isinstance(value, dict)
    ]
    inner = [
        format_table((*name, key), value)
        for key, value in content.items()
        if isinstance(value, dict)
    ]
    return "\n".join([*lines, *inner])


def append(text: str, block: str) -> str:
    """Return `text` with `block` as its last lines."""
    if not text:
        return block.lstrip("\n") + "\n"
    return text + ("" if text.endswith("\n") else "\n") + block + "\n"


def remove_table(text: str, name: TomlKey, mark: str) -> str:
    """Return `text` without the table `name`, its subtables and the comment `mark` before it."""
    lines = text.splitlines(keepends=True)
    for section in reversed(_sections([line.rstrip("\r\n") for line in lines])):
        if section.name[: len(name)] != name:
            continue
        start, end = section.start, section.end
        if start and lines[start - 1].strip() == mark:
            start -= 2 if start > 1 and not lines[start - 2].strip() else 1
        # Comments and blank lines before the next header belong to that header.
        while end > section.start + 1 and _is_aside(lines[end - 1]):
            end -= 1
        del lines[start:end]
    return "".join(lines)


def is_marked(text: str, name: TomlKey, mark: str) -> bool:
    """Return whether the comment `mark` is before the table `name`."""
    lines = text.splitlines()
    starts = [section.start for section in _sections(lines) if section.name == name]
    return any(start and lines[start - 1].strip() == mark for start in starts)


def parse_table(text: str, name: TomlKey) -> TomlTable:
    """Return the table `name` of a text whose other parts need not be TOML."""
    lines = text.splitlines()
    kept = [
        line
        for section in _sections(lines)
        if section.name[: len(name)] == name
        for line in lines[section.start : section.end]
    ]
    table = parse("\n".join(kept) + "\n")
    for part in name:
        table = table.get(part, {})
    return table


def set_string(text: str, name: TomlKey, key: str, value: str | None) -> str:
    """Return `text` with `key` of the table `name` set to a string, or removed if it is None."""
    lines = text.splitlines(keepends=True)
    plain = [line.rstrip("\r\n") for line in lines]
    section = next((candidate for candidate in _sections(plain) if candidate.name == name), None)
    if section is None:
        return text if value is None else append(text, format_table(name, {key: value}))
    line = re.compile(rf"(\s*{re.escape(key)}\s*=\s*)(\"[^\"]*\"|'[^']*')(.*)")
    for number in range(section.start + 1, section.end):
        if match := line.fullmatch(plain[number]):
            ending = lines[number][len(plain[number]) :]
            before, _, after = match.groups()
            if value is not None:
                lines[number] = f"{before}{json.dumps(value)}{after}{ending}"
            elif _is_only(plain, section, number):
                del lines[section.start : number + 1]
            else:
                del lines[number]
            return "".join(lines)
    if value is not None:
        indent = re.match(r"\s*", plain[section.start])
        assert indent is not None
        lines[section.start] = lines[section.start].rstrip("\r\n") + "\n"
        lines.insert(section.start + 1, f"{indent.group()}  {key} = {json.dumps(value)}\n")
    return "".join(lines)


def verified(edited: str, wanted: TomlTable) -> str:
    """Return `edited` if its content is `wanted`; BadConfiguration if the layout prevents that."""
    try:
        content = tomlkit.parse(edited).unwrap()
    except TOMLKitError:
        content = {}
    if _filled(content) != _filled(wanted):
        raise BadConfiguration(
            "the file's layout cannot be edited safely. Use --config with a file of plain "
            "[tables], or import one"
        )
    return edited


def _key(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part)


def _sections(lines: list[str]) -> list[Section]:
    starts: list[tuple[int, TomlKey]] = []
    for number, line in enumerate(lines):
        if _HEADER.fullmatch(line):
            starts.append((number, _parts(line)))
        elif line.lstrip().startswith("[["):
            starts.append((number, ()))
    ends = [*(start for start, _ in starts[1:]), len(lines)]
    return [Section(name, start, end) for (start, name), end in zip(starts, ends, strict=False)]


def _parts(header: str) -> TomlKey:
    try:
        table = tomlkit.parse(header.strip() + "\n").unwrap()
    except TOMLKitError:
        return ()  # a line of an array or a string that looks like a header
    parts: list[str] = []
    while table:
        ((name, table),) = table.items()
        parts.append(name)
    return tuple(parts)


def _is_aside(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _is_only(lines: list[str], section: Section, number: int) -> bool:
    """Return whether line `number` is the only content of `section`."""
    others = [*lines[section.start + 1 : number], *lines[number + 1 : section.end]]
    return all(not line.strip() for line in others)


def _filled(content: Any) -> Any:
    """Return `content` without empty tables, which have no effect."""
    if not isinstance(content, dict):
        return content
    kept = {name: _filled(value) for name, value in content.items()}
    return {name: value for name, value in kept.items() if value != {}}
