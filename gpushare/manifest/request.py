# SPDX-License-Identifier: Apache-2.0
"""What a container requests by all that a manifest says, with the position of every problem.

A container runtime sees the environment and annotations; limits, labels and claims are for the
kubelet, schedulers and their plugins. All of them are read here, in their vendors' meaning
(gpushare/quota/__init__.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpushare.manifest.model import Container, Document, ManifestValue
from gpushare.quota import QuotaError, ValueSource, parse_manifest
from gpushare.quota.dialects import TABLES, DialectRequest, KeyLocation, VendorValue
from gpushare.quota.request import Diagnostic, Layer

_OF_CONTAINERS: Final[tuple[KeyLocation, ...]] = (
    "env",
    "annotation",
    "limit",
    "label",
    "claim",
    "task",
)
_OF_DOCUMENTS: Final[tuple[KeyLocation, ...]] = ("node label", "node annotation", "plugin", "claim")


class LocatedValue(NamedTuple):
    """A vendor's value, and where it stands."""

    word: VendorValue
    value: ManifestValue


class KeyRefusal(NamedTuple):
    """A value that is refused, and where it stands: None if no single text is the reason."""

    error: QuotaError
    value: ManifestValue | None


@dataclass(frozen=True)
class ManifestRequest:
    """What a container requests.

    `dialects` has an entry for each dialect that is used, `own` what gpushare's own keys request,
    and `requested` is what all of it comes to. `problems` are values that are refused, `notes` what
    was not taken and why. `unreachable` are values that no container runtime sees;
    `dialect.translated_by` of each says what passes them on.
    """

    dialects: tuple[DialectRequest, ...]
    own: Layer
    requested: Layer
    problems: tuple[KeyRefusal, ...]
    notes: tuple[str, ...]
    unreachable: tuple[LocatedValue, ...]

    @property
    def asks(self) -> bool:
        """Whether a GPU is requested, rightly or not."""
        return bool(self.requested or self.problems)


def request_of(container: Container, *, strict: bool) -> ManifestRequest:
    """Return what `container` requests; `strict` holds each vendor's own rules, in one dialect."""
    parsed = parse_manifest(
        {where: _texts(container, where) for where in _OF_CONTAINERS},
        strict=strict,
        container=container.name,
        position=container.position,
        in_cluster=container.in_cluster,
    )
    return ManifestRequest(
        parsed.dialects,
        parsed.own,
        parsed.requested,
        tuple(_problems(container, parsed.diagnostics)),
        parsed.notes,
        tuple(_unreachable(container, parsed.dialects)),
    )


def _problems(container: Container, diagnostics: Iterable[Diagnostic]) -> list[KeyRefusal]:
    """Return what is refused, in the order of the file."""
    found = [KeyRefusal(one.error, _at(container, one.source)) for one in diagnostics]
    placed = [
        (one.value.line, one.value.column) if one.value else (sys.maxsize, 0) for one in found
    ]
    return [one for _, _, one in sorted(zip(placed, range(len(found)), found, strict=True))]


def settings_of(document: Document) -> list[LocatedValue]:
    """Return every operator's setting: labels of a Node, the file of a device plugin."""
    return [
        LocatedValue(word, document.values(where)[word.name])
        for where in _OF_DOCUMENTS
        for word in TABLES.find(
            where, {name: value.text for name, value in document.values(where).items()}
        )
    ]


def _texts(container: Container, where: KeyLocation) -> dict[str, str]:
    return {name: value.text for name, value in container.values(where).items()}


def _at(container: Container, source: ValueSource | None) -> ManifestValue | None:
    return None if source is None else container.values(source.kind).get(source.name)


def _unreachable(
    container: Container, dialects: tuple[DialectRequest, ...]
) -> Iterator[LocatedValue]:
    for one in dialects:
        for word in {
            word.source: word for word in one.words
        }.values():  # one key may say two things
            value = _at(container, word.source)
            if (
                value is not None
                and not word.row.is_visible
                and word.row.role in {"request", "option"}
            ):
                yield LocatedValue(word, value)
