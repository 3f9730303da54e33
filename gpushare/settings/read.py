# SPDX-License-Identifier: Apache-2.0
"""From the file to what it says, or to every problem that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpushare.marks import NotText, read_text
from gpushare.settings import rules, sections
from gpushare.settings.document import ConfigError, Document, Problem

MAX_BYTES: Final = 1 << 18


def text_of(file: Path) -> str:
    """Return the text of `file`; ConfigError where it cannot be read as one."""
    try:
        return read_text(file, MAX_BYTES, "gpushare.yaml")
    except NotText as error:
        raise ConfigError(file, Problem(error.fault.line, "", error.fault.told)) from error


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
