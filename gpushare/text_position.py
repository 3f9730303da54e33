# SPDX-License-Identifier: Apache-2.0
"""Lines, columns and keys in a user's text, and errors when reading it."""

from __future__ import annotations

from pathlib import Path
from typing import IO, NamedTuple

#: The keys and indices that lead to a value: ("driver", "cdi"), ("engines", "sockets", 0).
KeyPath = tuple[str | int, ...]


class Fault(NamedTuple):
    """Why a text cannot be read: line and column (0: unknown), and the message with its fix."""

    line: int
    column: int
    message: str


class UnreadableText(ValueError):
    """A text that cannot be read; `fault` has the position and the reason."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def key_of(path: KeyPath) -> str:
    """Return `engines.docker.sockets[0]`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def at(file: Path | str, line: int, column: int = 0) -> str:
    """Return `/etc/gpushare/gpushare.yaml:12`, in the form that editors accept."""
    position = ":".join(str(number) for number in (line, column) if number)
    return f"{file}:{position}" if position else str(file)


def read_text(file: Path, max_bytes: int, what: str) -> str:
    """Return the text of `file`, which is a `what`; UnreadableText, also for an OSError."""
    try:
        with file.open("rb") as stream:
            return decode(stream, max_bytes, what)
    except OSError as error:
        raise UnreadableText(Fault(0, 0, f"{error.strerror}; name another file")) from error


def decode(stream: IO[bytes], max_bytes: int, what: str) -> str:
    """Return the UTF-8 text of `stream`; UnreadableText if it is not UTF-8, or is too long."""
    data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UnreadableText(Fault(0, 0, f"larger than {max_bytes >> 10} KiB: not a {what}"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnreadableText(Fault(line, 0, "not UTF-8 text; save it as UTF-8")) from error
