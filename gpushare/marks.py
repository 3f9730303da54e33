# SPDX-License-Identifier: Apache-2.0
"""Where something stands in a text that a person wrote, and what makes the text unreadable."""

from __future__ import annotations

from pathlib import Path
from typing import IO, NamedTuple

import yaml

#: The way to a value: ("driver", "cdi"), ("engines", "docker", "sockets", 0).
Place = tuple[str | int, ...]


class Fault(NamedTuple):
    """What makes a text unreadable: the line and column (0: of none in particular), and why."""

    line: int
    column: int
    told: str


class NotText(ValueError):
    """A file that is no text to be read here; `fault` says where and why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.told)
        self.fault = fault


def key_of(place: Place) -> str:
    """Return `engines.docker.sockets[0]`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")


def at(file: Path | str, line: int, column: int = 0) -> str:
    """Return `/etc/gpushare/gpushare.yaml:12`, as editors take it."""
    where = ":".join(str(number) for number in (line, column) if number)
    return f"{file}:{where}" if where else str(file)


def read_text(file: Path, most_bytes: int, what: str) -> str:
    """Return the text of `file`; NotText where it has more bytes than `what` has, or is no UTF-8.

    Its OSError is a NotText too: another file is to be named.
    """
    try:
        with file.open("rb") as stream:
            return text_of(stream, most_bytes, what)
    except OSError as error:
        raise NotText(Fault(0, 0, f"{error.strerror}; name another file")) from error


def text_of(stream: IO[bytes], most_bytes: int, what: str) -> str:
    """Return the text that `stream` has, as read_text."""
    data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise NotText(Fault(0, 0, f"over {most_bytes >> 10} KiB; this is no {what}"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise NotText(Fault(line, 0, "not UTF-8 text; save it as UTF-8")) from error


def fault_of(error: yaml.YAMLError, text: str) -> Fault:
    """Return what `error`, of a reader of `text`, is about."""
    if isinstance(error, yaml.reader.ReaderError):
        return not_printable(text, error.position)
    assert isinstance(error, yaml.MarkedYAMLError)
    mark = error.problem_mark
    if mark is None:
        return Fault(0, 0, f"not YAML: {error.problem}")
    fix = "; indent with spaces" if text[mark.index : mark.index + 1] == "\t" else ""
    return Fault(mark.line + 1, mark.column + 1, f"not YAML: {error.problem}{fix}")


def not_printable(text: str, position: int) -> Fault:
    """Return what is wrong with the character at `position`, which no text may have."""
    line = text.count("\n", 0, position) + 1
    return Fault(line, 0, f"has the character U+{ord(text[position]):04X}; take it out")
