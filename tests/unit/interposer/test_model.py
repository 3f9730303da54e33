# SPDX-License-Identifier: Apache-2.0
"""Random sequences through all doors, from several processes, beside a model and the card's truth.

After each step: the tenant is within its quota, the card has given no more than is charged, and
nobody was refused what there was room for. At the end of a sequence all is given back, exactly.
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

from .conftest import LIGHT_CONTEXT_BYTES, Container, SimulatedContainer
from .program import DOORS, NOT_PERMITTED, OUT_OF_MEMORY, Program, Refused
from .tenant import MIB

PROCESSES: Final = 3
QUOTA: Final = 512 * MIB
UNIT: Final = 2 * MIB  # the card's granularity
CHUNK: Final = 32 * MIB  # by which pools and graphs grow
SEQUENCES: Final = 200

ODD: Final = (1, 511, 4097, MIB - 1, MIB + 1, 5 * MIB + 3)
ROUND: Final = tuple(UNIT * count for count in (1, 2, 3, 8, 16, 40, 100, 250))
# What takes only whole units, and what holds only one thing at a time.
WHOLE_UNITS: Final = frozenset({"physical", "mapped"})

taking = st.tuples(st.sampled_from(DOORS), st.sampled_from(ODD + ROUND))
giving = st.integers(min_value=0, max_value=30)
step = st.tuples(
    st.integers(min_value=0, max_value=PROCESSES - 1),
    st.one_of(taking, taking, giving, st.sampled_from(["sync", "trim"])),
)


@dataclass
class World:
    """The programs of one container, what they hold by the model, and an observer of the card."""

    container: Container
    programs: Sequence[Program]
    observer: Program  # past the filter, and of no tenant
    held: list[tuple[Program, int, str, int]] = field(default_factory=list)
    at_rest: int = 0  # what the card had free when nobody held anything

    def take(self, program: Program, door: str, size: int) -> None:
        if door in WHOLE_UNITS:
            size = -(-size // UNIT) * UNIT
        try:
            number = program.take(door, size)
        except Refused as refused:
            self.check_refusal(refused, door, size)
        else:
            self.held.append((program, number, door, size))

    def check_refusal(self, refused: Refused, door: str, size: int) -> None:
        if door == "limit" and refused.code == NOT_PERMITTED:
            return
        assert refused.code == OUT_OF_MEMORY, refused
        assert QUOTA - self.charged() < size + CHUNK + UNIT, f"{refused}: there was room"

    def give(self, which: int) -> None:
        if self.held:
            program, number, _, _ = self.held.pop(which % len(self.held))
            program.give(number)

    def charged(self) -> int:
        return self.container.tenant.used()[0]

    def check(self) -> None:
        assert self.charged() <= QUOTA
        # Managed memory is on the card when something touches it there; nothing here does.
        counted = self.charged() - self.container.tenant.kind(abi.KIND_MANAGED)
        counted -= PROCESSES * LIGHT_CONTEXT_BYTES
        given = self.at_rest - self.observer.free()
        # Small buffers share a unit that the card has taken whole; so does what is in a module.
        small = sum(size % UNIT != 0 or door == "module" for _, _, door, size in self.held)
        assert given <= counted + small * UNIT

    def clear(self) -> None:
        while self.held:
            self.give(0)
        for program in self.programs:
            program.trim()
        assert self.container.tenant.used() == (PROCESSES * LIGHT_CONTEXT_BYTES, PROCESSES)
        for kind in range(abi.KIND_MANAGED, abi.KINDS):
            assert self.container.tenant.kind(kind) == 0
        assert self.observer.free() == self.at_rest


@pytest.fixture
def world(
    simulated_container: SimulatedContainer, light_profile: Path, doors_program: str
) -> Iterator[World]:
    container = simulated_container(1, [0], light_profile)
    container.tenant.set_memory(QUOTA)
    container.tenant.set_context_bytes(LIGHT_CONTEXT_BYTES)
    bare = Container(container.libraries / "simulator", container.tenant, container.env)
    with ExitStack() as stack:
        observer = stack.enter_context(Program(bare, doors_program))
        programs = [
            stack.enter_context(Program(container, doors_program)) for _ in range(PROCESSES)
        ]
        for program in programs:
            program.free()  # it has its context
        made = World(container, programs, observer)
        made.at_rest = observer.free()
        yield made


def test_any_sequence_keeps_the_quota_and_gives_back_exactly(world: World) -> None:
    @settings(
        max_examples=SEQUENCES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(step, max_size=40))
    def play(steps: list[tuple[int, tuple[str, int] | int | str]]) -> None:
        for who, action in steps:
            program = world.programs[who]
            if isinstance(action, tuple):
                world.take(program, *action)
            elif isinstance(action, int):
                world.give(action)
            else:
                program.ask(action)
            world.check()
        world.clear()

    play()
