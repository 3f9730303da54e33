# SPDX-License-Identifier: Apache-2.0
"""What a container's annotations and environment ask in other systems' words.

Each word keeps the place of the source that it came from, so that what a dialect asks is above or
beneath the rest as a key of ours in the same place would be. A word that only says how stands no
higher than what asks beside it: alone it would be a request for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare.quota.dialects.combine import combine
from gpushare.quota.dialects.find import Tables
from gpushare.quota.dialects.places import Place, beside
from gpushare.quota.dialects.row import Word
from gpushare.quota.dialects.spoken import Spoken, shown
from gpushare.quota.dialects.together import Said
from gpushare.quota.errors import BadValue, QuotaError, printable, quoted
from gpushare.quota.keys import KEYS
from gpushare.quota.others import Dialects
from gpushare.quota.pod import Pod
from gpushare.quota.quota import Asked, Layer, Source
from gpushare.quota.visible import VISIBLE_DEVICES

_ORDER: Final = {key: number for number, key in enumerate(KEYS)}
_SHOWN: Final = 4  # containers that a note names


@dataclass
class Heard:
    """What was asked, by place and dialect. `notes` say what was not taken, and why.

    `meanings` say what was, in words of ours. `unnamed` is a pod's that names no container.
    """

    said: dict[Place, list[Said]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    meanings: list[str] = field(default_factory=list)
    unnamed: Asked | None = None

    def at(self, place: Place) -> list[Said]:
        """Return what was asked there, one for each dialect."""
        return self.said.get(place, [])

    def beside(self, ours: Sequence[Layer], *, strict: bool, notes: list[str]) -> list[Layer]:
        """Return what is asked in each place with `ours` there; as places.beside."""
        return beside(ours, self.said, strict=strict, notes=notes)


@dataclass(frozen=True)
class Listener:
    """Finds the words of a container: `tables` are of all dialects, `dialects` says what of them.

    `pod` is the container's, `of_pod` the annotations of the pod itself, None where they cannot be
    seen.
    """

    tables: Tables
    dialects: Dialects
    pod: Pod | None = None
    of_pod: Mapping[str, str] | None = None

    def hear(
        self, annotations: Mapping[str, str], env: Mapping[str, str], *, reads_env: bool = True
    ) -> Heard:
        """Return what is asked; QuotaError where it cannot be given, or not here.

        Without `reads_env` the environment is only named in the notes.
        """
        heard = Heard()
        places: dict[Source, Place] = {}
        words = self._annotated(annotations, places, heard)
        of_env = self.tables.find("env", env)
        if not (words or of_env):
            return heard
        if reads_env:
            places |= {word.source: Place.ENV for word in of_env}
            words += of_env
        else:
            heard.notes += _not_read(of_env)
        words = self._asking(self._taken(words, heard), heard)
        for spoken in combine(words, strict=self.dialects.mode == "strict") if words else ():
            _put(spoken, places, heard)
        return heard

    @staticmethod
    def _asking(words: Sequence[Word], heard: Heard) -> list[Word]:
        """Return the words of the dialects that ask: most images say how, and no more."""
        asking = {word.dialect.name for word in words if word.row.use == "asks"}
        known = {word.source for word in words if word.dialect.name in asking}
        heard.notes += _says_only_how(word for word in words if word.source not in known)
        return [word for word in words if word.dialect.name in asking]

    # --- annotations ---

    def _annotated(
        self, annotations: Mapping[str, str], places: dict[Source, Place], heard: Heard
    ) -> list[Word]:
        """Return the words of the annotations that are for this container, the highest first."""
        found: dict[Place, list[Word]] = {}
        named: dict[str, set[str]] = {}
        for word in _addressed(self.tables.find("annotation", annotations), self.pod):
            if word.container:
                self._refuse_podless(word)
                if word.row.use != "kept":  # a scheduler's note of whom it placed asks for nobody
                    named.setdefault(word.dialect.name, set()).add(word.container)
                if self.pod is not None and word.container == self.pod.container:
                    found.setdefault(Place.SCOPED, []).append(word)
            elif self._is_of_pod(word):
                source = Source("pod annotation", word.name)
                found.setdefault(Place.OF_POD, []).append(replace(word, source=source))
            else:
                found.setdefault(Place.OWN, []).append(word)
        if Place.OF_POD in found:
            found[Place.OF_POD] = self._for_this(found[Place.OF_POD], named, heard)
        for place in sorted(found):
            places |= {word.source: place for word in found[place]}
        return [word for place in sorted(found) for word in found[place]]

    def _is_of_pod(self, word: Word) -> bool:
        if self.pod is None:
            return False
        return self.of_pod is None or self.of_pod.get(word.name) == word.text

    def _refuse_podless(self, word: Word) -> None:
        if self.pod is None and word.row.use == "asks" and self.dialects.takes(word.dialect.name):
            rule = f"is for container {quoted(word.container)} of a pod, and this one is in none"
            fix = f"write gpushare.io/{word.row.gives or 'memory'}"
            raise QuotaError(shown(word), word.text, rule, fix)

    def _for_this(
        self, words: Sequence[Word], named: Mapping[str, set[str]], heard: Heard
    ) -> list[Word]:
        """Return what of a pod's annotations without a name is for this container.

        Where a dialect names containers, only those may ask in it. What only says how is for all.
        """
        assert self.pod is not None
        kept = []
        for word in words:
            others = named.get(word.dialect.name, set()) - {self.pod.container}
            if word.row.use != "asks" or not others:
                kept.append(word)
                continue
            names = ", ".join(map(quoted, sorted(others)[:_SHOWN]))
            if self.pod.container in named[word.dialect.name]:
                rule = f"is for no container by name, and that of {names} may ask too"
                raise QuotaError(shown(word), word.text, rule, "write it for each container")
            heard.notes.append(
                f"{shown(word)} {quoted(word.text)} was not taken: its pod's requests are for "
                f"{names}"
            )
        return kept

    # --- what this node takes ---

    def _taken(self, words: Sequence[Word], heard: Heard) -> list[Word]:
        """Return the words of the dialects that are taken here; QuotaError for another that asks.

        A name that several dialects know is a word of the one that is taken.
        """
        if self.dialects.accept is None:
            return list(words)
        taken = [word for word in words if self.dialects.takes(word.dialect.name)]
        known = {word.source for word in taken}
        left = [word for word in words if word.source not in known]
        for spoken in combine(left, strict=False):
            asking = [word for word in spoken.words if word.row.use == "asks"]
            if not (spoken.layer or spoken.problems) or not asking:
                continue
            accept = self.dialects.said("accept")
            if self.dialects.others == "refuse":
                raise self._not_taken(spoken, asking[0], accept)
            heard.notes += [
                f"{shown(word)} {quoted(word.text)} was not taken: {spoken.dialect.name} is not in "
                f"{accept}"
                for word in asking
            ]
        return taken

    def _not_taken(self, spoken: Spoken, word: Word, accept: str) -> QuotaError:
        keys = " ".join(
            f"{KEYS[key].env}={asked.text}"
            if word.row.where == "env"
            else f"{KEYS[key].annotation}={asked.text}"
            for key, asked in spoken.layer.items()
        )
        rule = f"asks as {spoken.dialect.title}, which this node does not take"
        ours = f"write {keys}, or " if keys else ""
        fix = f"{ours}have {spoken.dialect.name} added to {accept}"
        return QuotaError(str(word.source), word.text, rule, fix)


def asks(tables: Tables, annotations: Mapping[str, str]) -> bool:
    """Whether any of `annotations` asks for a GPU in another system's words."""
    return any(word.row.use == "asks" for word in tables.find("annotation", annotations))


def naming(tables: Tables, annotation: str) -> str:
    """Return the annotation by which the dialect of `annotation` names a container, or nothing."""
    rows = (
        row for word in tables.find("annotation", {annotation: ""}) for row in word.dialect.rows
    )
    return next((row.name for row in rows if row.names_container), "")


def _addressed(words: Sequence[Word], pod: Pod | None) -> Iterator[Word]:
    """Yield the words of a pod, those that another one addresses with their container's name."""
    to = {
        word.dialect.name: word.text.strip()
        for word in words
        if word.row.names_container and pod is not None
    }
    for word in words:
        named = to.get(word.dialect.name, "")
        addressed = named and not word.container and not word.row.names_container
        yield replace(word, container=named) if addressed else word


def _not_read(words: Iterable[Word]) -> list[str]:
    names = sorted({word.name for word in words if word.row.gives} - {VISIBLE_DEVICES})
    return [f"{printable(name)} was not read: trust.env is ignore" for name in names]


def _put(spoken: Spoken, places: Mapping[Source, Place], heard: Heard) -> None:
    """Put what is said in one dialect where it was said, and in words of ours beside it."""
    if spoken.problems:
        raise spoken.problems[0].error()
    if not spoken.layer:
        heard.notes += _says_only_how(word for word in spoken.words if word.row.use != "asks")
        return
    asking = [word for word in spoken.words if word.row.use == "asks"]
    highest = min((places[word.source] for word in asking), default=Place.ENV)
    layers: dict[Place, Layer] = {}
    for key, asked in spoken.layer.items():
        layers.setdefault(max(places[asked.source], highest), {})[key] = asked
    for place, layer in layers.items():
        heard.said.setdefault(place, []).append(Said(spoken.dialect.title, layer))
    heard.notes += spoken.notes
    heard.meanings.append(_meaning(spoken))
    by_source = {asked.source: asked for asked in spoken.layer.values()}
    unscoped = (word for word in asking if places[word.source] is Place.OF_POD)
    if heard.unnamed is None and not any(word.container for word in asking):
        heard.unnamed = next(
            (by_source[word.source] for word in unscoped if word.source in by_source), None
        )


def _says_only_how(words: Iterable[Word]) -> list[str]:
    """Return a note for each dialect of `words`, none of which asks."""
    by_dialect: dict[str, list[Word]] = {}
    for word in {word.source: word for word in words}.values():
        if word.row.gives and word.name != VISIBLE_DEVICES and _says(word):
            by_dialect.setdefault(word.dialect.title, []).append(word)
    return [_only_how(title, said) for title, said in by_dialect.items()]


def _only_how(title: str, words: Sequence[Word]) -> str:
    first, *others = words
    if not others:
        rule = f"was not taken: it only says how, and nothing of {title} asks"
        return f"{shown(first)} {quoted(first.text)} {rule}"
    names = ", ".join(str(word.source) for word in words)
    return f"{names} ({title}) were not taken: they only say how, and nothing of {title} asks"


def _says(word: Word) -> bool:
    """Whether its text is a value, and one that says something."""
    try:
        return word.row.unit.read(word.text) is not None
    except BadValue:
        return False


def _meaning(spoken: Spoken) -> str:
    """Return `HAMi: env CUDA_DEVICE_MEMORY_LIMIT "4096m" is memory 4GiB`."""
    keys: dict[Source, list[str]] = {}
    written: dict[Source, str] = {}
    for key, asked in sorted(spoken.layer.items(), key=lambda one: _ORDER[one[0]]):
        keys.setdefault(asked.source, []).append(f"{key} {asked.text}")
        written[asked.source] = asked.shown
    told = (
        f"{printable(str(source))} {quoted(written[source])} is {' and '.join(said)}"
        for source, said in keys.items()
    )
    return f"{spoken.dialect.title}: {', '.join(told)}"
