# SPDX-License-Identifier: Apache-2.0
"""Random sequences of all allocation paths on two cards, checked against a model and the cards.

After each step: the tenant is within its quotas, no card has given more than is charged, and
no program was refused memory that was available. At the end of a sequence all is freed, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare import abi

from .conftest import LIGHT_CONTEXT_BYTES, SimulatedContainer
from .container import ProgramContainer
from .program import ALLOCATION_PATHS, NOT_PERMITTED, OUT_OF_MEMORY, DriverProgram, RefusedByDriver
from .tenant import MIB

CARD_OF: Final = (0, 0, 1)  # by process
CARDS: Final = tuple(sorted(set(CARD_OF)))
QUOTA: Final = 512 * MIB
UNIT: Final = 2 * MIB  # the card's granularity
CHUNK: Final = 32 * MIB  # by which pools and graphs grow
SEQUENCES: Final = 150

ODD: Final = (1, 511, 4097, MIB - 1, MIB + 1, 5 * MIB + 3)
ROUND: Final = tuple(UNIT * count for count in (1, 2, 3, 8, 16, 40, 100, 250))
# What takes only whole units, and what holds only one thing at a time.
WHOLE_UNITS: Final = frozenset({"physical", "mapped"})

taking = st.tuples(st.sampled_from(ALLOCATION_PATHS), st.sampled_from(ODD + ROUND))
giving = st.integers(min_value=0, max_value=30)
step = st.tuples(
    st.integers(min_value=0, max_value=len(CARD_OF) - 1),
    st.one_of(taking, taking, giving, st.sampled_from(["sync", "trim"])),
)


@dataclass
class ModelledPrograms:
    """The programs of one container, what they hold by the model, and an observer of each card."""

    container: ProgramContainer
    programs: Sequence[DriverProgram]
    observers: Sequence[DriverProgram]  # past the filter, and of no tenant
    at_rest: Sequence[int]  # what each card had free before any allocation
    held: list[tuple[int, int, str, int]] = field(default_factory=list)

    def take(self, who: int, allocation: str, size: int) -> None:
        if allocation in WHOLE_UNITS:
            size = -(-size // UNIT) * UNIT
        try:
            number = self.programs[who].take(allocation, size)
        except RefusedByDriver as refused:
            self.check_refusal(refused, CARD_OF[who], allocation, size)
        else:
            self.held.append((who, number, allocation, size))

    def check_refusal(
        self, refused: RefusedByDriver, card: int, allocation: str, size: int
    ) -> None:
        if allocation == "limit" and refused.code == NOT_PERMITTED:
            return
        assert refused.code == OUT_OF_MEMORY, refused
        assert QUOTA - self.charged(card) < size + CHUNK + UNIT, f"{refused}: there was room"

    def give(self, which: int) -> None:
        if self.held:
            who, number, _, _ = self.held.pop(which % len(self.held))
            self.programs[who].give(number)

    def charged(self, card: int) -> int:
        return self.container.tenant.used(card)[0]

    def check(self, card: int) -> None:
        assert self.charged(card) <= QUOTA
        # Managed memory is on the card when something touches it there; nothing here does.
        counted = self.charged(card) - self.container.tenant.kind(abi.KIND_MANAGED, card)
        counted -= CARD_OF.count(card) * LIGHT_CONTEXT_BYTES
        given = self.at_rest[card] - self.observers[card].free()
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
            program.trim()
        for card in CARDS:
            contexts = CARD_OF.count(card)
            assert self.container.tenant.used(card) == (contexts * LIGHT_CONTEXT_BYTES, contexts)
            for kind in range(abi.KIND_MANAGED, abi.KINDS):
                assert self.container.tenant.kind(kind, card) == 0
            assert self.observers[card].free() == self.at_rest[card]


@pytest.fixture
def world(
    simulated_container: SimulatedContainer, light_profile: Path, allocation_program: str
) -> Iterator[ModelledPrograms]:
    container = simulated_container(len(CARDS), list(CARDS), light_profile)
    for card in CARDS:
        container.tenant.set_memory(QUOTA, card)
        container.tenant.set_context_bytes(LIGHT_CONTEXT_BYTES, card)
    bare = ProgramContainer(container.libraries / "simulator", container.tenant, container.env)
    with ExitStack() as stack:

        def started(around: ProgramContainer, card: int) -> DriverProgram:
            return stack.enter_context(DriverProgram(around, allocation_program, device=card))

        observers = [started(bare, card) for card in CARDS]
        programs = [started(container, card) for card in CARD_OF]
        for program in programs:
            program.free()  # it has its context
        yield ModelledPrograms(container, programs, observers, [one.free() for one in observers])


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
                world.programs[who].ask(action)
            for card in CARDS:
                world.check(card)
        world.clear()

    play()
