# SPDX-License-Identifier: Apache-2.0
"""What a plan of MIG instances is made from: the cards that can be divided, and requests."""

from __future__ import annotations

from typing import TypedDict


class MigProfileRow(TypedDict):
    """A kind of instance that a card can have (NVIDIA's GPU instance profile)."""

    id: int  # the driver's, as nvidia-smi mig -lgip
    name: str  # 1g.10gb+me
    slices: int  # of the card's compute
    count: int  # at most so many on one card
    multiprocessors: int
    memory_bytes: int
    places: list[list[int]]  # start and size of each, in parts of the card's memory


class MigPart(TypedDict):
    """A GPU instance that a card has."""

    profile_id: int
    start: int
    size: int
    uuid: str  # of the MIG device in it; empty: it has none
    available: bool  # whether nothing is allocated on it


class MigCard(TypedDict):
    """A card, and how it can be divided."""

    index: int
    uuid: str
    model: str
    mig_mode: bool
    profiles: list[MigProfileRow]  # none: it cannot be divided, or not now
    placement_source: str  # driver; or guide: NVIDIA's rules, of a card that is not in MIG mode
    instances: list[MigPart]
    blocked: str  # why no instance can be created now; empty: one can
    fix: str  # what helps against that; empty: nothing does


class MigRequest(TypedDict):
    """A request, and which instances it fits. `profiles` and `instances` are by a card's UUID."""

    name: str
    request: str  # 10 GiB and 20 % of its compute
    waiting: bool  # of a start that waits, not of the caller
    profiles: dict[str, list[int]]
    instances: list[str]  # UUIDs of those that are there, and available
    refusal: str  # why no kind of instance fits; empty: one does
