# SPDX-License-Identifier: Apache-2.0
"""Where something was asked, and what all dialects come to there with our own keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from gpushare.quota.dialects.together import OURS, Said, together
from gpushare.quota.quota import Layer


class Place(IntEnum):
    """Where something was asked, the highest first; as read_annotations' layers."""

    OWN = 0
    SCOPED = 1
    OF_POD = 2
    ENV = 3


def beside(
    ours: Sequence[Layer],
    said: Mapping[Place, Sequence[Said]],
    *,
    strict: bool,
    notes: list[str],
) -> list[Layer]:
    """Return what `ours`, by place, and what is `said` there come to; note what was not taken.

    Our keys are a dialect like the others. QuotaError where two ask, wherever, and `strict`. What
    is in one place is beneath what is in another as it would be without dialects: the caller's.
    """
    both = [[Said(OURS, ours[place]), *said.get(place, ())] for place in Place]
    if strict:
        together(_of_all(both), strict=True)
    merged = [together(here, strict=False) for here in both]
    notes += [note for one in merged for note in one.notes]
    return [one.layer for one in merged]


def _of_all(places: Iterable[list[Said]]) -> list[Said]:
    """Return what is asked in each dialect, wherever it is."""
    layers: dict[str, Layer] = {}
    for said in places:
        for one in said:
            layers[one.title] = {**one.layer, **layers.get(one.title, {})}
    return [Said(title, layer) for title, layer in layers.items()]
