# SPDX-License-Identifier: Apache-2.0
"""The NVML worker's answer about a card's MIG instances, validated: as validation.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gpushare.daemon.cards.driver_client import InvalidSample
from gpushare.daemon.placement.division import (
    CardDivision,
    HeldInstance,
    MigKind,
    MigPlace,
    usual_places,
)

_PARTS_MOST: Final = 64


def card_division(answer: Mapping[str, Any]) -> CardDivision:
    """Return the answer to `division`; InvalidSample."""
    try:
        kinds = tuple(_kind(one) for one in answer["kinds"])
        held = tuple(
            HeldInstance(int(one["gpu_instance"]), int(one["kind"]), _place(one["place"]))
            for one in answer["instances"]
        )
        are_told = all(one["places"] is not None for one in answer["kinds"])
        if not are_told:
            kinds = tuple(replace(kind, places=usual_places(kind, kinds)) for kind in kinds)
        return CardDivision(kinds, bool(answer["enabled"]), held, are_told)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidSample(
            f"the driver reports MIG profiles in an unknown format: {error!r}"
        ) from error


def _kind(reported: Mapping[str, Any]) -> MigKind:
    return MigKind(
        number=int(reported["id"]),
        name=str(reported["name"]),
        slices=int(reported["slices"]),
        count=int(reported["count"]),
        multiprocessors=int(reported["multiprocessors"]),
        memory_bytes=int(reported["memory"]),
        places=tuple(_place(place) for place in reported["places"] or ()),
    )


def _place(reported: Any) -> MigPlace:
    start, size = map(int, reported)
    if not (0 <= start < _PARTS_MOST and 0 < size <= _PARTS_MOST - start):
        raise ValueError(f"placement {start}:{size}")
    return start, size
