# SPDX-License-Identifier: Apache-2.0
"""How requests for one container combine: by the place where each is written, and by dialect.

A lower place may request less than what is granted above it, never more. What is granted is more
than the keys that are set: whole cards come with all of the card, and memory alone means one card,
without cores reserved on it.

Requests in several dialects at one place: a strict node refuses them, a lenient one takes the
smaller value of each key. gpushare's own keys are one of the dialects: a manifest with HAMi's keys
and our annotations makes two requests, and nothing says which is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from gpushare.quota.errors import QuotaError, printable, quoted
from gpushare.quota.keys import KEYS
from gpushare.quota.profiles import SET_BY_PROFILE
from gpushare.quota.request import (
    IDLE_AFTER,
    PROFILE,
    TIME_LIMIT,
    WAIT,
    Diagnostic,
    Layer,
    RequestedValue,
    requests_memory,
    requests_whole_cards,
)

_OTHER_FORM: Final = {"memory": "memory-percent", "memory-percent": "memory"}
_PARTS_OF_A_CARD: Final = frozenset({"memory", "memory-percent", "memory-limit", "cores"})
_NEVER_ENLARGE: Final = frozenset(
    {
        *("memory", "memory-percent", "allow", "deny", "compute-capability", "placement", "numa"),
        *(IDLE_AFTER, TIME_LIMIT, WAIT, PROFILE),
    }
)
_MODEST: Final = {"class": "offline", "oversubscribe": "none"}


@dataclass
class GrantedLayers:
    """What the sources read so far grant, and notes on what those below them did not get.

    `cards` names what put cards into the spec before any source was read; empty: nothing did.
    `refinable` are keys that a lower source may add, although they ask for more: the scheduler
    allocates none of them.
    """

    layer: Layer
    notes: list[str]
    cards: str = ""
    refinable: frozenset[str] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether whole cards are granted."""
        return requests_whole_cards(self.layer, has_cards=bool(self.cards))

    def merge(self, lower: Layer, *, shrink_only: bool = False) -> None:
        """Put `lower` beneath what is granted; `shrink_only`: it may not add a key of its own.

        Of the keys of one layer none comes before another: each is held against what was granted
        above all of them.
        """
        higher = GrantedLayers(dict(self.layer), [], self.cards, self.refinable)
        for name, requested in lower.items():
            refusal = higher.why_not(name, requested, shrink_only=shrink_only)
            if refusal is not None:
                self.note(requested, refusal)
            elif name not in higher.layer:
                self.layer[name] = requested
            else:
                narrowed = KEYS[name].narrow(higher.layer[name].value, requested.value)
                if narrowed != higher.layer[name].value:
                    self.layer[name] = RequestedValue(
                        requested.text, narrowed, requested.source, requested.written
                    )

    def override(self, operator: Layer) -> None:
        """Put the operator's values in place of others, and leave the rest as it was requested.

        The operator set them on a container that had the rest: none of it is smaller, or larger,
        when the container starts the next time.
        """
        if PROFILE not in operator and not operator.keys().isdisjoint(SET_BY_PROFILE):
            self.layer.pop(PROFILE, None)  # it is not that any more
        for name, requested in operator.items():
            for replaced in (name, _OTHER_FORM.get(name)):
                below = self.layer.pop(replaced, None) if replaced else None
                if below is not None and below.source.kind != "default":
                    self.note(
                        below, f"{requested.source} {quoted(requested.shown)} takes precedence"
                    )
            self.layer[name] = requested

    def note(self, requested: RequestedValue, why: str) -> None:
        """Add a note that `requested` was not applied: nothing is dropped silently."""
        shown = f"{printable(str(requested.source))} {quoted(requested.shown)}"
        self.notes.append(f"{shown} was not applied: {why}")

    def why_not(self, name: str, requested: RequestedValue, *, shrink_only: bool) -> str | None:
        """Return why a lower source's value is not taken; None when it is, or says the same."""
        if name in self.layer:
            above = self.layer[name]
            if requested.value != above.value == KEYS[name].narrow(above.value, requested.value):
                return f"{above.source} {quoted(above.shown)} takes precedence"
            return None
        part = self.whole and name in _PARTS_OF_A_CARD
        if shrink_only and not part:
            return "the environment may only shrink what an annotation grants (trust.env)"
        other = _OTHER_FORM.get(name)
        if other in self.layer:
            return f"{self.layer[other].source} sets memory in the other form"
        if (self.layer or self.cards) and self._enlarges(name, requested):
            return f"it would exceed what {self._granting_source()} grants"
        return None

    def _granting_source(self) -> str:
        return str(next(iter(self.layer.values())).source) if self.layer else self.cards

    def _enlarges(self, name: str, requested: RequestedValue) -> bool:
        """Whether a key that no higher source set would give more than the higher ones."""
        if name in self.refinable:
            return name == "cores" and requested.value == 100  # a whole card
        if name in _NEVER_ENLARGE:
            return False
        if name in _MODEST:
            return requested.value != _MODEST[name]
        if name in {"count", "devices"} and self.cards:
            return False  # resolve_request refuses more than what is in the spec
        if name == "count" and "devices" in self.layer:
            devices = self.layer["devices"].value
            assert isinstance(devices, tuple)
            return requested.value != len(devices)
        if name == "devices":
            assert isinstance(requested.value, tuple)
            return len(requested.value) > self._count()
        if name in {"memory-limit", "cores"}:
            has_memory = requests_memory(self.layer)
            return not self.whole and (has_memory or requested.value == 100)
        return requests_memory(self.layer) if name == "policy" else True

    def _count(self) -> int:
        """Return the cards that are granted; a source that says nothing of them means one."""
        count = self.layer["count"].value if "count" in self.layer else 1
        assert isinstance(count, int)
        return count


OURS: Final = "gpushare"


@dataclass(frozen=True)
class DialectLayer:
    """What is requested in one dialect, by its title."""

    title: str
    layer: Layer


@dataclass(frozen=True)
class MergedLayer:
    """The combined layer of several, which values were not applied, and why."""

    layer: Layer
    notes: tuple[str, ...] = ()


def merge_dialects(layers: Iterable[DialectLayer]) -> MergedLayer:
    """Return the combined request of several dialects: of two values the smaller."""
    notes: list[str] = []
    merged: Layer = {}
    for one in layers:
        merged = _less(merged, one.layer, notes) if merged and one.layer else merged or one.layer
    return MergedLayer(dict(merged), tuple(notes))


def dialect_conflict(layers: Iterable[DialectLayer]) -> Diagnostic | None:
    """Return the problem that a strict node has with requests in two dialects; None if in one."""
    requesting = [one for one in layers if one.layer]
    if len(requesting) < 2:
        return None
    first, second = requesting[:2]
    one, other = next(iter(first.layer.values())), next(iter(second.layer.values()))
    beside = f"{other.source} {quoted(other.shown)}"
    rule = f"uses {first.title} keys, and {beside} uses {second.title} keys"
    fix = "keep one of the two, or set dialects.mode to lenient to apply the smaller value"
    return Diagnostic(QuotaError(str(one.source), one.shown, rule, fix), one.source)


def _less(first: Layer, second: Layer, notes: list[str]) -> Layer:
    """Return the smaller value of each key; of values that cannot be compared, the first."""
    if requests_whole_cards(first) != requests_whole_cards(second):
        first, second = _parts(first, notes), _parts(second, notes)
    layer: Layer = {}
    for key in dict.fromkeys((*first, *second)):
        mine, other = first.get(key), second.get(key)
        if mine is None and _OTHER_FORM.get(key) in first:
            assert other is not None
            _note(notes, other, first[_OTHER_FORM[key]], "sets memory in the other form")
        elif mine is None or other is None:
            taken = mine or other
            assert taken is not None
            layer[key] = taken
        else:
            layer[key] = _least(key, mine, other, notes)
    return layer


def _parts(layer: Layer, notes: list[str]) -> Layer:
    """Return `layer` without cores of 100: another dialect requests a part of a card."""
    if not requests_whole_cards(layer):
        return layer
    if "cores" in layer:
        requested = layer["cores"]
        notes.append(
            f"{requested.source} {quoted(requested.shown)} was not applied: another dialect "
            "requests part of a card"
        )
    return {key: requested for key, requested in layer.items() if key != "cores"}


def _least(
    key: str, mine: RequestedValue, other: RequestedValue, notes: list[str]
) -> RequestedValue:
    if mine.value == other.value:
        return mine
    narrowed = KEYS[key].narrow(mine.value, other.value)
    if narrowed == other.value:
        _note(notes, mine, other, "requests less")
        return other
    if narrowed == mine.value:
        _note(notes, other, mine, "requests less")
        return mine
    text = ",".join(narrowed) if isinstance(narrowed, tuple) else str(narrowed)
    return RequestedValue(text, narrowed, mine.source, written=mine.written)


def _note(notes: list[str], left: RequestedValue, taken: RequestedValue, why: str) -> None:
    notes.append(
        f"{left.source} {quoted(left.shown)} was not applied: {taken.source} {quoted(taken.shown)} "
        f"{why}"
    )


class Precedence(IntEnum):
    """Where something is requested, the highest first; as read_annotations' layers."""

    OWN = 0
    SCOPED = 1
    OF_POD = 2
    ENV = 3


def merge_places(
    ours: Sequence[Layer], theirs: Mapping[Precedence, Sequence[DialectLayer]]
) -> list[MergedLayer]:
    """Return for each place what our own keys and other dialects there come to.

    How the places combine with each other is for the caller, as it would be without dialects.
    """
    return [
        merge_dialects([DialectLayer(OURS, ours[place]), *theirs.get(place, ())])
        for place in Precedence
    ]


def by_dialect(
    ours: Sequence[Layer], theirs: Mapping[Precedence, Sequence[DialectLayer]]
) -> list[DialectLayer]:
    """Return what is requested in each dialect, in whatever place, our own keys first."""
    layers: dict[str, Layer] = {}
    for place in Precedence:
        for one in (DialectLayer(OURS, ours[place]), *theirs.get(place, ())):
            layers[one.title] = {**one.layer, **layers.get(one.title, {})}
    return [DialectLayer(title, layer) for title, layer in layers.items()]
