# SPDX-License-Identifier: Apache-2.0
"""All that there is to say of one file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpushare.manifest.check.alauda import alauda
from gpushare.manifest.check.asked import asked, settings
from gpushare.manifest.check.finding import ERROR, Finding, Level, of_node
from gpushare.manifest.check.resources import resources
from gpushare.manifest.check.scopes import scopes
from gpushare.manifest.check.shapes import shapes
from gpushare.manifest.check.unknown import unknown
from gpushare.manifest.errors import ManifestError
from gpushare.manifest.file import Document, File
from gpushare.manifest.request import request_of


@dataclass(frozen=True)
class Checked:
    """What was found in a file, sorted by where; and how many containers were looked at."""

    path: str
    findings: tuple[Finding, ...]
    containers: int = 0
    asking: int = 0

    def count(self, level: Level) -> int:
        """Return how many findings there are of `level`."""
        return sum(finding.level == level for finding in self.findings)


def check(file: File, *, strict: bool) -> Checked:
    """Return all that there is to say of `file`; `strict` holds every vendor's own rules."""
    found = list(_twice(file))
    asking = 0
    for document in file.documents:
        found += _of_document(document)
        for container in document.containers:
            request = request_of(container, strict=strict)
            asking += request.asks or container.cards is not None
            found += [*resources(container), *unknown(container)]
            found += asked(container, request, strict=strict)
    # Containers of a pod share its annotations, and aliases are read once for each of their uses.
    return Checked(file.path, tuple(sorted(set(found))), len(file.containers), asking)


def unreadable(error: ManifestError) -> Checked:
    """Return the same of a file that cannot be read."""
    fault = error.fault
    finding = Finding(fault.line, fault.column, "", fault.told, "")
    return Checked(error.path, (finding,))


def _of_document(document: Document) -> Iterator[Finding]:
    yield from shapes(document)
    yield from scopes(document)
    yield from settings(document)
    yield from alauda(document)


def _twice(file: File) -> Iterator[Finding]:
    for key, first in file.twice:
        rule = f"is there twice, first in line {first.start_mark.line + 1}"
        yield of_node(key.value, key, rule, "keep one", level=ERROR)
