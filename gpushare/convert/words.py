# SPDX-License-Identifier: Apache-2.0
"""A request in the words of a target, and what of it the target has no words for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gpushare.convert.targets import Surface, Target, To, Told, Unsayable, Where
from gpushare.quota import Given, Quota, exact_size, give
from gpushare.quota.quota import Layer, Value

Values: TypeAlias = "dict[str, Value]"

_BY_WEIGHT: Final = "native-burst-share"
_SIZES: Final = frozenset({"memory", "memory-limit"})


@dataclass(frozen=True)
class Written:
    """One key of the target with its text, and the canonical key that it says."""

    key: str
    name: str
    where: Where
    text: str


@dataclass(frozen=True)
class Lost:
    """A canonical key that the target does not say, or not as it was asked, and why."""

    key: str
    text: str
    why: str


@dataclass
class Words:
    """What is written for a container, and what is not."""

    written: list[Written] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)


def words(layer: Layer, quota: Quota, target: Target, surface: Surface) -> Words:
    """Return what `layer` is in `target`, in a file for `surface`.

    Unsayable where what is left to say would be another request: less than nothing is written then.
    QuotaError where the request contradicts itself.
    """
    rows = target.words.get(surface)
    if rows is None:
        raise Unsayable(f"{target.title} is asked by pods of Kubernetes, and this is for {surface}")
    made = Words()
    values = {key: asked.value for key, asked in layer.items()}
    values = _SHAPES[target.name](values, give(quota), made)
    order = [row.key for row in rows]
    for key in sorted(values, key=lambda key: order.index(key) if key in order else len(order)):
        value = values[key]
        text = layer[key].text if key in layer and layer[key].value == value else _text(key, value)
        of_key = [row for row in rows if row.key == key]
        told = _first(of_key, value, text if target.name == "gpushare" else None)
        if isinstance(told, str):
            why = told or f"{target.title} has no word for it"
            if key in target.elsewhere:
                why = f"{target.elsewhere[key]} says it"
            made.lost.append(Lost(key, text, why))
            continue
        row, said = told
        made.written.append(Written(key, row.name, row.where, said.text))
        if said.but:
            made.lost.append(Lost(key, text, said.but))
    return made


def _first(rows: list[To], value: Value, text: str | None) -> tuple[To, Told] | str:
    """Return the first row that has a word for `value`, or why none has."""
    why = ""
    for row in rows:
        try:
            return row, Told(text) if text is not None else row.write(value)
        except Unsayable as error:
            why = str(error)
    return why


def _text(key: str, value: Value) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return exact_size(value) if key in _SIZES and isinstance(value, int) else str(value)


# --- what a request is made of, where a target puts it together otherwise ---


def _ours(values: Values, given: Given, _made: Words) -> Values:
    if given.kind == "shared" and values.get("count") == 1:
        return {key: value for key, value in values.items() if key != "count"}
    return values


def _hami(values: Values, given: Given, made: Words) -> Values:
    """Cards are always counted, and a whole one is all of its compute."""
    kept = dict(values)
    devices = kept.pop("devices", None)
    if isinstance(devices, tuple):
        if all(name.startswith("GPU-") for name in devices) and "allow" not in kept:
            kept["allow"] = devices
        else:
            why = "HAMi knows cards by UUID: write those of gpushare ls, or leave it out"
            made.lost.append(Lost("devices", ",".join(devices), why))
    first: Values = {"count": given.count or 1}
    if given.kind == "whole":
        kept = {key: kept[key] for key in kept if key not in {"memory", "memory-percent"}}
        kept["cores"] = 100
    return {**first, **{key: value for key, value in kept.items() if key != "count"}}


def _qgpu(values: Values, given: Given, made: Words) -> Values:
    """Whole cards are N x 100 of compute; a part is of one card, and has memory and compute."""
    kept = {key: value for key, value in values.items() if key != "count"}
    cards = given.count or 1
    if given.kind == "whole":
        kept = {key: kept[key] for key in kept if key not in {"memory", "memory-percent", "weight"}}
        if cards > 1 and kept.get("class") == "offline":
            _lose(kept, made, "class", "qGPU's offline pods have one card")
        return {**kept, "cores": cards * 100}
    if cards > 1:
        raise Unsayable(f"qGPU gives parts of one card only, and {cards} are asked for")
    if "memory" not in kept:
        raise Unsayable("qGPU wants memory in GiB, and a percentage is asked for; write memory")
    if kept.get("class") == "online":
        for key in ("cores", "weight"):
            _lose(kept, made, key, "qGPU's online pods ask for memory alone")
    elif "cores" in kept:
        _lose(kept, made, "weight", "qGPU has it in place of compute, not beside")
    elif _greedy(kept):
        del kept["policy"]  # which qgpu-core-greedy is
    else:
        raise Unsayable("qGPU wants compute beside memory; add gpushare.io/cores")
    return kept


def _greedy(kept: Values) -> bool:
    """Whether a request is what qgpu-core-greedy says."""
    weight = kept.get("weight", 0)
    return isinstance(weight, int) and 0 < weight <= 100 and kept.get("policy") == _BY_WEIGHT


def _lose(kept: Values, made: Words, key: str, why: str) -> None:
    if key in kept:
        made.lost.append(Lost(key, str(kept.pop(key)), why))


_SHAPES: Final[Mapping[str, Callable[[Values, Given, Words], Values]]] = {
    "gpushare": _ours,
    "hami": _hami,
    "qgpu": _qgpu,
}
