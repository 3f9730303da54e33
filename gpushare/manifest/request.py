# SPDX-License-Identifier: Apache-2.0
"""What a container asks by all that a manifest says, whoever would have to hear it.

An OCI runtime hears of the environment and of annotations; limits, labels and claims are for the
kubelet, schedulers and their plugins. Here all of them are read, in their vendors' meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpushare.manifest.file import Container, Document, Value
from gpushare.manifest.own import Refusal, read_own, refused
from gpushare.quota import QuotaError
from gpushare.quota.dialects import (
    OURS,
    TABLES,
    Said,
    Spoken,
    Where,
    Word,
    combine,
    shown,
    together,
)
from gpushare.quota.quota import Layer

_OF_CONTAINERS: Final[tuple[Where, ...]] = ("env", "annotation", "limit", "label", "claim", "task")
_OF_DOCUMENTS: Final[tuple[Where, ...]] = ("node label", "node annotation", "plugin", "claim")


class Found(NamedTuple):
    """A word of a vendor's, and where it stands."""

    word: Word
    value: Value


@dataclass(frozen=True)
class Request:
    """What a container asks.

    `spoken` has an entry for each dialect that is heard, `own` what gpushare's own keys say, and
    `asked` is what all of it comes to. `problems` are values that are refused, `notes` what was not
    taken and why. `unreachable` are words that no OCI runtime hears; `dialect.translated_by` of
    each says what brings them to one.
    """

    spoken: tuple[Spoken, ...]
    own: Layer
    asked: Layer
    problems: tuple[Refusal, ...]
    notes: tuple[str, ...]
    unreachable: tuple[Found, ...]

    @property
    def asks(self) -> bool:
        """Whether a GPU is asked for, rightly or not."""
        return bool(self.asked or self.problems)


def request_of(container: Container, *, strict: bool) -> Request:
    """Return what `container` asks; `strict` holds each vendor's own rules, and takes one alone."""
    own = read_own(container)
    words = [found.word for found in words_of(container)]
    spoken = combine(words, strict=strict, position=container.position, container=container.name)
    problems = [
        Refusal(shown(one.word), _value(container, one.word), one.word.text, one.rule, one.fix)
        for said in spoken
        for one in said.problems
    ]
    said = [Said(OURS, own.layer), *(Said(one.dialect.title, one.layer) for one in spoken)]
    try:
        all_of_it = together(said, strict=strict)
    except QuotaError as error:
        problems.append(refused(error, _first(container, said)))
        all_of_it = together(said, strict=False)
    notes = [*own.notes, *(note for one in spoken for note in one.notes), *all_of_it.notes]
    return Request(
        tuple(spoken),
        own.layer,
        all_of_it.layer,
        (*own.refusals, *problems),
        tuple(dict.fromkeys(notes)),
        tuple(_unreachable(container, spoken)),
    )


def words_of(container: Container) -> list[Found]:
    """Return every word of a vendor that `container` has."""
    return [
        Found(word, container.values(where)[word.name])
        for where in _OF_CONTAINERS
        for word in TABLES.find(where, _texts(container, where))
    ]


def settings_of(document: Document) -> list[Found]:
    """Return every word of an operator's: labels of a Node, the file of a device plugin."""
    return [
        Found(word, document.values(where)[word.name])
        for where in _OF_DOCUMENTS
        for word in TABLES.find(
            where, {name: value.text for name, value in document.values(where).items()}
        )
    ]


def _texts(container: Container, where: Where) -> dict[str, str]:
    return {name: value.text for name, value in container.values(where).items()}


def _value(container: Container, word: Word) -> Value | None:
    return container.values(word.source.kind).get(word.name)


def _first(container: Container, said: list[Said]) -> Value | None:
    """Return where the first dialect that asks does so."""
    asked = next((asked for one in said for asked in one.layer.values()), None)
    return None if asked is None else container.values(asked.source.kind).get(asked.source.name)


def _unreachable(container: Container, spoken: list[Spoken]) -> Iterator[Found]:
    for one in spoken:
        for word in {
            word.source: word for word in one.words
        }.values():  # one key may say two things
            value = _value(container, word)
            if value is not None and not word.row.reaches and word.row.use in {"asks", "says"}:
                yield Found(word, value)
