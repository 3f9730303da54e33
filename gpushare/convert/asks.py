# SPDX-License-Identifier: Apache-2.0
"""What a container asks, and where each word of it stands in the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpushare.manifest import Container, Value
from gpushare.manifest.request import Request, request_of
from gpushare.quota import BadValue
from gpushare.quota.dialects import Spoken, Word
from gpushare.quota.keys import ANNOTATION_PREFIX, is_quota
from gpushare.quota.quota import Layer


@dataclass(frozen=True)
class Found:
    """A key of the file, what it says in which dialect; `word` is None where it is our own."""

    name: str
    value: Value
    word: Word | None = None
    of_requests: bool = False

    @property
    def gives(self) -> str:
        """The canonical key that it fills; empty where it fills none."""
        if self.word is not None:
            return self.word.row.gives
        return self.name.rpartition(".")[2] if "/" in self.name else ""

    @property
    def of_pod(self) -> bool:
        """Whether its node is not the container's."""
        return self.word is not None and self.word.row.where in {"annotation", "label"}


@dataclass(frozen=True)
class Asks:
    """One container's request, by whose words, and where they stand.

    `foreign` are the words of other dialects than the target's of which a canonical key comes,
    `kept` those of which none does, `own` the target's. `alone` are words that ask for what no
    canonical key says.
    """

    container: Container
    request: Request
    foreign: tuple[Found, ...]
    kept: tuple[Found, ...]
    own: tuple[Found, ...]
    alone: tuple[Found, ...]

    @property
    def layer(self) -> Layer:
        """The canonical request; empty where none is asked."""
        return self.request.asked

    @property
    def line(self) -> int:
        """The line of the first word of it."""
        found = next(iter((*self.foreign, *self.own)), None)
        return found.value.line if found else self.container.line


def asks_of(container: Container, dialect: str) -> Asks:
    """Return what `container` asks; `dialect` is the target's, empty for our own keys.

    QuotaError where what it asks cannot be told.
    """
    request = request_of(container, strict=False)
    foreign, kept, own, alone = [], [], [], []
    for spoken in request.spoken:
        for word in spoken.words:
            for found in _found(container, word):
                if spoken.dialect.name == dialect:
                    own.append(found)
                elif _translated(word, spoken):
                    foreign.append(found)
                elif spoken.layer:
                    kept.append(found)
                elif word.row.use == "asks" and not word.row.gives and not word.row.reaches:
                    alone.append(found)
    ours = list(_ours(container))
    if dialect:
        foreign += ours
    else:
        own += ours
    gives = tuple(found for found in own if found.gives)
    return Asks(container, request, tuple(foreign), tuple(kept), gives, tuple(alone))


def _found(container: Container, word: Word) -> Iterator[Found]:
    values = container.values(word.source.kind)
    if word.name in values:
        yield Found(word.name, values[word.name], word)
    if word.row.where == "limit" and word.name in container.requests:
        yield Found(word.name, container.requests[word.name], word, of_requests=True)


def _translated(word: Word, spoken: Spoken) -> bool:
    """Whether what a word says is said by the target's."""
    row = word.row
    if not spoken.layer or row.where == "claim":
        return False
    if not row.gives:  # a part of what another word says
        whole_of = any(other.row.over == row.name for other in spoken.words)
        return whole_of or row.names_container or (row.use == "asks" and bool(row.beside))
    if row.where in {"limit", "label", "task"}:
        return True
    try:
        return row.unit.read(word.text) is not None
    except BadValue:
        return True  # it is a problem, and nothing is written


def _ours(container: Container) -> Iterator[Found]:
    """Yield our own keys that are for this container."""
    scope = f"{ANNOTATION_PREFIX}container."
    for name, value in container.annotations.items():
        if name.startswith(scope):
            if name.startswith(f"{scope}{container.name}."):
                yield Found(name, value)
        elif name.startswith(ANNOTATION_PREFIX):
            yield Found(name, value)
    for name, value in container.env.items():
        if is_quota(name):
            yield Found(name, value)
