# SPDX-License-Identifier: Apache-2.0
"""How a card can be divided into MIG instances, and how it is; pure.

The memory of a card has eight parts (four on some models). An instance takes consecutive ones,
and the driver knows at which of them an instance of each kind can begin ("placement": start and
size). The driver tells that only while the card is in MIG mode; for other cards, `usual_places`
has the rules that NVIDIA's guide gives for the models with seven and with four slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: A start, and how many parts of the card's memory there are from it.
MigPlace = tuple[int, int]

#: MIG user guide, "MIG Profile and Placement": by slices, and whether it has twice their memory.
_OF_SEVEN: Final[dict[tuple[int, bool], tuple[MigPlace, ...]]] = {
    (1, False): tuple((start, 1) for start in range(7)),
    (1, True): tuple((start, 2) for start in (0, 2, 4, 6)),
    (2, False): ((0, 2), (2, 2), (4, 2)),
    (3, False): ((0, 4), (4, 4)),
    (4, False): ((0, 4),),
    (7, False): ((0, 8),),
}
_OF_FOUR: Final[dict[tuple[int, bool], tuple[MigPlace, ...]]] = {
    (1, False): tuple((start, 1) for start in range(4)),
    (2, False): ((0, 2), (2, 2)),
    (4, False): ((0, 4),),
}
_USUAL: Final = {7: _OF_SEVEN, 4: _OF_FOUR}


@dataclass(frozen=True)
class MigKind:
    """One kind of instance that a card can have; NVIDIA's word is GPU instance profile.

    `number` is the driver's, as `nvidia-smi mig -lgip` shows it. `count` is how many of it a card
    has at most. `places` is empty where they are not known.
    """

    number: int
    name: str  # "1g.10gb+me"
    slices: int
    count: int
    multiprocessors: int
    memory_bytes: int
    places: tuple[MigPlace, ...] = ()


@dataclass(frozen=True)
class HeldInstance:
    """A GPU instance that a card has."""

    gpu_instance: int
    kind: int
    place: MigPlace


@dataclass(frozen=True)
class CardDivision:
    """The kinds of instances of a card, none if it cannot be divided, and what it has of them.

    `places_are_told`: by the driver; otherwise they are those of NVIDIA's guide.
    """

    kinds: tuple[MigKind, ...] = ()
    is_enabled: bool = False  # MIG mode
    instances: tuple[HeldInstance, ...] = ()
    places_are_told: bool = True


def usual_places(kind: MigKind, kinds: Sequence[MigKind]) -> tuple[MigPlace, ...]:
    """Return where an instance of `kind` can be on a card with `kinds`; () if that is not known."""
    least = min((one.memory_bytes for one in kinds if one.slices == 1), default=0)
    # The memory of two parts is a little more or less than twice that of one.
    is_double = kind.slices == 1 and 2 * kind.memory_bytes > 3 * least
    table = _USUAL.get(max(one.slices for one in kinds), {})
    return table.get((kind.slices, is_double), ())
