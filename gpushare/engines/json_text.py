# SPDX-License-Identifier: Apache-2.0
"""Edits JSON text without changing any other byte."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpushare.engines.config_files import BadConfiguration

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_INDENT: Final = re.compile(r"\n([ \t]+)\S")


@dataclass(frozen=True)
class JsonMember:
    """A member of an object, with its positions in the text."""

    name: str
    start: int  # of the name's quote
    value: int
    end: int  # one past the value


def parse(text: str) -> dict[str, Any]:
    """Return the object in `text`; BadConfiguration for other JSON, or a duplicate key."""
    try:
        loaded = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        is_after = error.msg == "Extra data"
        reason = "text after the object, such as a second }" if is_after else error.msg
        raise BadConfiguration(reason, error.lineno) from error
    if not isinstance(loaded, dict):
        raise BadConfiguration("is not a JSON object", 1)
    return loaded


def set_member(text: str, path: Sequence[str], value: Any) -> str:
    """Return `text` with the member at `path` set; missing objects on the path are created.

    `text` must be a valid object (see `parse`), and so must every existing value on the path.
    """
    start, depth = _SPACE.match(text).end(), 1  # type: ignore[union-attr]
    for number, name in enumerate(path):
        members = _members(text, start)
        known = next((member for member in members if member.name == name), None)
        last = number == len(path) - 1
        if known is None:
            nested: Any = value
            for outer in reversed(path[number + 1 :]):
                nested = {outer: nested}
            return _insert(text, start, depth, name, nested)
        if last:
            shown = _shown(text, value, depth)
            return text[: known.value] + shown + text[known.end :]
        start, depth = known.value, depth + 1
    raise AssertionError(path)


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return `text` without the member at `path`, which may be absent."""
    start = _SPACE.match(text).end()  # type: ignore[union-attr]
    for number, name in enumerate(path):
        members = _members(text, start)
        place = next((at for at, member in enumerate(members) if member.name == name), None)
        if place is None:
            return text
        member = members[place]
        if number < len(path) - 1:
            start = member.value
        elif place > 0:
            # The comma before it goes too, and the white space between.
            return text[: members[place - 1].end] + text[member.end :]
        elif len(members) > 1:
            return text[: member.start] + text[members[1].start :]
        else:
            closing = text.index("}", member.end)
            return text[: start + 1] + text[closing:]
    return text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadConfiguration(f'duplicate key "{twice}"')
    return members


def _members(text: str, start: int) -> list[JsonMember]:
    """Return the members of the object that begins at `start`."""
    decode = json.JSONDecoder().raw_decode
    members: list[JsonMember] = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        name, after = decode(text, at)
        value = _skip(text, _skip(text, after) + 1)  # over the colon
        _, end = decode(text, value)
        members.append(JsonMember(name, at, value, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return members


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _insert(text: str, start: int, depth: int, name: str, value: Any) -> str:
    """Return `text` with a new last member in the object at `start`."""
    members = _members(text, start)
    indent = _indent(text)
    fresh = f"{json.dumps(name)}: {_shown(text, value, depth)}"
    if members:
        end = members[-1].end
        separator = ", " if _on_one_line(text) else f",\n{indent * depth}"
        return text[:end] + separator + fresh + text[end:]
    closing = _skip(text, start + 1)
    if _on_one_line(text):
        return text[: start + 1] + fresh + text[closing:]
    return f"{text[: start + 1]}\n{indent * depth}{fresh}\n{indent * (depth - 1)}{text[closing:]}"


def _shown(text: str, value: Any, depth: int) -> str:
    if _on_one_line(text):
        return json.dumps(value)
    indent = _indent(text)
    return json.dumps(value, indent=indent).replace("\n", "\n" + indent * depth)


def _on_one_line(text: str) -> bool:
    return "\n" not in text.strip()


def _indent(text: str) -> str:
    match = _INDENT.search(text)
    return match.group(1) if match else "    "
