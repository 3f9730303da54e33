# SPDX-License-Identifier: Apache-2.0
"""From the file to what it says, or to every problem that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpushare.settings import rules, sections
from gpushare.settings.document import ConfigError, Document, Problem

MAX_BYTES: Final = 1 << 18


def text_of(file: Path) -> str:
    """Return the text of `file`; ConfigError where it cannot be read as one."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        told = f"{error.strerror}; name another file"
        raise ConfigError(file, Problem(0, "", told)) from error
    if len(data) > MAX_BYTES:
        told = f"over {MAX_BYTES >> 10} KiB; this is no gpushare.yaml"
        raise ConfigError(file, Problem(0, "", told))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(file, Problem(line, "", "not UTF-8 text; save it as UTF-8")) from error


def checked(text: str, file: Path) -> Document:
    """Return what `text`, the content of `file`, says; ConfigError with all that is wrong."""
    document = Document(text, file)
    rules.check(document)
    if not document.problems:
        for section in (
            sections.NODE,
            sections.USERS,
            *map(sections.of_namespace, sections.namespaces(document)),
        ):
            sections.check(document, section)
    if document.problems:
        raise ConfigError(file, *sorted(document.problems))
    return document
