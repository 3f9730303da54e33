# SPDX-License-Identifier: Apache-2.0
"""Random sequences of all allocation paths on two cards, checked against a model and the cards.

After each step: the tenant is within its quotas, no card has given more than is charged, and
no program was refused memory that was available. At the end of a sequence all is freed, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare import abi

from .allocations import ALLOCATION_PATHS, NOT_PERMITTED, TakenMemory
from .client import MIB, OUT_OF_MEMORY, start
from .conftest import LIGHT_CONTEXT_BYTES, SimulatedContainer
from .container import ProgramContainer
from .rank import Rank

CARD_OF: Final = (0, 0, 1)  # by process
CARDS: Final = tuple(sorted(set(CARD_OF)))
QUOTA: Final = 512 * MIB
UNIT: Final = 2 * MIB  # the card's granularity
CHUNK: Final = 32 * MIB  # by which pools and graphs grow
SEQUENCES: Final = 150
FREE: Final = "memory()[0]"

ODD: Final = (1, 511, 4097, MIB - 1, MIB + 1, 5 * MIB + 3)
ROUND: Final = tuple(UNIT * count for count in (1, 2, 3, 8, 16, 40, 100, 250))
# What takes only whole units, and what holds only one thing at a time.
WHOLE_UNITS: Final = frozenset({"physical", "mapped"})

taking = st.tuples(st.sampled_from(ALLOCATION_PATHS), st.sampled_from(ODD + ROUND))
giving = st.integers(min_value=0, max_value=30)
step = st.tuples(
    st.integers(min_value=0, max_value=len(CARD_OF) - 1),
    st.one_of(taking, taking, giving, st.sampled_from(["synchronize()", "own.trim()"])),
)


@dataclass
class ModelledPrograms:
    """The programs of one container, what they hold by the model, and an observer of each card."""

    container: ProgramContainer
    programs: Sequence[Rank]
    observers: Sequence[Rank]  # past the filter, and of no tenant
    at_rest: Sequence[int]  # what each card had free before any allocation
    held: list[tuple[int, int, str, int]] = field(default_factory=list)

    def take(self, who: int, allocation: str, size: int) -> None:
        if allocation in WHOLE_UNITS:
            size = -(-size // UNIT) * UNIT
        number = self.programs[who].ask(f"own.take({allocation!r}, {size})")
        if isinstance(number, int):
            self.held.append((who, number, allocation, size))
        elif allocation != "limit" or number != {"refused": NOT_PERMITTED}:
            assert number == {"refused": OUT_OF_MEMORY}, (allocation, size)
            left = QUOTA - self.charged(CARD_OF[who])
            assert left < size + CHUNK + UNIT, f"{allocation}, {size}: there was room"

    def give(self, which: int) -> None:
        if self.held:
            who, number, _, _ = self.held.pop(which % len(self.held))
            assert self.programs[who].ask(f"own.give({number})") is None

    def charged(self, card: int) -> int:
        return self.container.tenant.used(card)[0]

    def check(self, card: int) -> None:
        assert self.charged(card) <= QUOTA
        # Managed memory is on the card when something touches it there; nothing here does.
        counted = self.charged(card) - self.container.tenant.kind(abi.KIND_MANAGED, card)
        counted -= CARD_OF.count(card) * LIGHT_CONTEXT_BYTES
        given = self.at_rest[card] - self.observers[card].ask(FREE)
        # Small buffers share a unit that the card has taken whole; so does what is in a module.
        small = sum(
            CARD_OF[who] == card and (size % UNIT != 0 or allocation == "module")
            for who, _, allocation, size in self.held
        )
        assert given <= counted + small * UNIT

    def clear(self) -> None:
        while self.held:
            self.give(0)
        for program in self.programs:
            assert program.ask("own.trim()") is None
        for card in CARDS:
            contexts = CARD_OF.count(card)
            assert self.container.tenant.used(card) == (contexts * LIGHT_CONTEXT_BYTES, contexts)
            for kind in range(abi.KIND_MANAGED, abi.KINDS):
                assert self.container.tenant.kind(kind, card) == 0
            assert self.observers[card].ask(FREE) == self.at_rest[card]


@pytest.fixture
def world(
    simulated_container: SimulatedContainer, light_profile: Path
) -> Iterator[ModelledPrograms]:
    container = simulated_container(len(CARDS), list(CARDS), light_profile)
    for card in CARDS:
        container.tenant.set_memory(QUOTA, card)
        container.tenant.set_context_bytes(LIGHT_CONTEXT_BYTES, card)
    observers = [Rank(container.bare(), partial(start, card)) for card in CARDS]
    programs = [Rank(container, int, {"TakenMemory": TakenMemory}) for _ in CARD_OF]
    for program, card in zip(programs, CARD_OF, strict=True):
        program.ask(f"TakenMemory({card})", "own")
    at_rest = [observer.ask(FREE) for observer in observers]
    yield ModelledPrograms(container, programs, observers, at_rest)
    for rank in (*programs, *observers):
        rank.end()


def test_any_sequence_keeps_the_quotas_and_gives_back_exactly(world: ModelledPrograms) -> None:
    @settings(
        max_examples=SEQUENCES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(step, max_size=40))
    def play(steps: list[tuple[int, tuple[str, int] | int | str]]) -> None:
        for who, action in steps:
            if isinstance(action, tuple):
                world.take(who, *action)
            elif isinstance(action, int):
                world.give(action)
            else:
                assert world.programs[who].ask(action) is None
            for card in CARDS:
                world.check(card)
        world.clear()

    play()
