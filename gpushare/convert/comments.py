# SPDX-License-Identifier: Apache-2.0
"""The comments of what goes: they come with what takes its place."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from gpushare.convert.asks import Asks, Found
from gpushare.convert.blocks import Gone
from gpushare.convert.edits import New, Quoted
from gpushare.convert.plan import Path
from gpushare.convert.words import Words
from gpushare.convert.work import Work


def move_comments(work: Work) -> list[str]:
    """Give the comments of what goes to what takes its place; return all of them."""
    found: list[str] = []
    takers: dict[int, list[_Taker]] = {}
    for asks, said, new in work.done:
        plan, _, path = work.placed(asks.container)
        if new:
            takers.setdefault(id(plan), []).append(_Taker(path, asks, said, new))
    for plan in work.plans:
        plan.prune()
        for _, path, gone in plan.gone():
            found += [*gone.above, *gone.behind.values()]
            if id(plan) in takers:
                _move(takers[id(plan)], path, gone)
    return found


class _Taker(NamedTuple):
    path: Path
    asks: Asks
    said: Words
    new: list[New]


def _move(takers: list[_Taker], path: Path, gone: Gone) -> None:
    """Give the comments of one collection to the container that it is of, or the pod's first."""
    _, asks, said, new = max(takers, key=lambda one: _shared(one.path, path))
    above = list(gone.above)
    for name, comment in gone.behind.items():
        found = next((one for one in (*asks.foreign, *asks.own) if one.name == name), None)
        if found is None:
            above.append(comment)
            continue
        taker = _taker(found, said, new)
        if taker is not None and _text(taker) == found.value.text:
            taker.behind = comment
        else:  # it may be about the number that was
            written_out = f"# {name}: {found.value.text}  {comment}"
            (above if taker is None else taker.above).append(written_out)
    new[0].above += [one for one in above if one not in new[0].above]


def _shared(first: Path, second: Path) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _taker(found: Found, said: Words, new: list[New]) -> New | None:
    """Return the entry that says what `found` did."""
    names = {one.name for one in said.written if one.key == found.gives}
    scoped = tuple(f".{name.rpartition('/')[2]}" for name in names)
    return next((one for one in new if one.key in names or one.key.endswith(scoped)), None)


def _text(new: New) -> str:
    return new.value.text if isinstance(new.value, Quoted) else str(new.value)
