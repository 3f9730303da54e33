# SPDX-License-Identifier: Apache-2.0
"""Several dialects at once: a strict node refuses, a lenient one takes what asks for less.

gpushare's own keys are one of them: who brings a manifest of HAMi's and adds our annotations has
said two things, and which is meant nobody here knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.quota.errors import QuotaError, quoted
from gpushare.quota.keys import KEYS
from gpushare.quota.layers import Granted
from gpushare.quota.quota import Asked, Layer

OURS: Final = "gpushare"
_OTHER_FORM: Final = {"memory": "memory-percent", "memory-percent": "memory"}


@dataclass(frozen=True)
class Said:
    """What is asked in one dialect, by its title."""

    title: str
    layer: Layer


@dataclass(frozen=True)
class Together:
    """The one layer that several come to, and what was not taken of them, and why."""

    layer: Layer
    notes: tuple[str, ...] = ()


def together(said: Sequence[Said], *, strict: bool) -> Together:
    """Return what all of `said` come to; QuotaError where there are two and `strict`."""
    asking = [one for one in said if one.layer]
    if not asking:
        return Together({})
    if strict and len(asking) > 1:
        raise both(*asking[:2])
    notes: list[str] = []
    layer = dict(asking[0].layer)
    for one in asking[1:]:
        layer = _less(layer, one.layer, notes)
    return Together(layer, tuple(notes))


def both(first: Said, second: Said) -> QuotaError:
    """Return the error for a request in two dialects."""
    one, other = next(iter(first.layer.values())), next(iter(second.layer.values()))
    rule = f"asks as {first.title}, and {other.source} {quoted(other.shown)} asks as {second.title}"
    fix = "keep one of the two, or let dialects.mode be lenient: the smaller is taken"
    return QuotaError(str(one.source), one.shown, rule, fix)


def _less(first: Layer, second: Layer, notes: list[str]) -> Layer:
    """Return for each key what asks for less; of what cannot be compared, what came first."""
    if Granted(first, []).whole != Granted(second, []).whole:
        first, second = _parts(first, notes), _parts(second, notes)
    layer: Layer = {}
    for key in dict.fromkeys((*first, *second)):
        mine, other = first.get(key), second.get(key)
        if mine is None and _OTHER_FORM.get(key) in first:
            assert other is not None
            _note(notes, other, first[_OTHER_FORM[key]], "says memory in the other form")
        elif mine is None or other is None:
            taken = mine or other
            assert taken is not None
            layer[key] = taken
        else:
            layer[key] = _least(key, mine, other, notes)
    return layer


def _parts(layer: Layer, notes: list[str]) -> Layer:
    """Take from whole cards what makes them whole: another dialect asks for a part of one."""
    if not Granted(layer, []).whole:
        return layer
    if "cores" in layer:
        asked = layer["cores"]
        notes.append(
            f"{asked.source} {quoted(asked.shown)} was not taken: a part of a card is less"
        )
    return {key: asked for key, asked in layer.items() if key != "cores"}


def _least(key: str, mine: Asked, other: Asked, notes: list[str]) -> Asked:
    if mine.value == other.value:
        return mine
    narrowed = KEYS[key].narrow(mine.value, other.value)
    if narrowed == other.value:
        _note(notes, mine, other, "asks for less")
        return other
    if narrowed == mine.value:
        _note(notes, other, mine, "asks for less")
        return mine
    text = ",".join(narrowed) if isinstance(narrowed, tuple) else str(narrowed)
    return Asked(text, narrowed, mine.source, written=mine.written)


def _note(notes: list[str], left: Asked, taken: Asked, why: str) -> None:
    notes.append(
        f"{left.source} {quoted(left.shown)} was not taken: {taken.source} {quoted(taken.shown)} "
        f"{why}"
    )
