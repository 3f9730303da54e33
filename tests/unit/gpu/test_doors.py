# SPDX-License-Identifier: Apache-2.0
"""Every way by every door: what is claimed of a door, on the simulated driver and on a stand-in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gpu import doors, programs
from tests.gpu.doors import MIB, OUT_OF_MEMORY, Doors, Full
from tests.gpu.driver import Driver
from tests.gpu.filtered import GRANULE, tenancy
from tests.gpu.report import NotMeasured, Row
from tests.unit.interposer import program

QUOTA = 64 * MIB
INVALID_VALUE = 1


class Room(Doors):
    """A process that gives `room` bytes, in no piece larger than `largest`."""

    def __init__(self, room: int, largest: int = 1 << 60, *, alone: bool = False) -> None:
        self.room, self.largest, self.alone = room, largest, alone
        self.held: dict[int, int] = {}
        self.most = 0

    def take(self, _: str, size: int) -> tuple[int, int]:
        if size > self.largest:
            return INVALID_VALUE, INVALID_VALUE
        if (self.alone and self.held) or sum(self.held.values()) + size > self.room:
            return OUT_OF_MEMORY, OUT_OF_MEMORY
        number = len(self.held)
        self.held[number] = size
        self.most = max(self.most, sum(self.held.values()))
        return 0, number

    def give(self, number: int) -> int:
        del self.held[number]
        return 0


def test_the_doors_are_those_of_the_unit_tests_that_a_real_driver_has() -> None:
    assert (*doors.DOORS, "external") == program.DOORS


@pytest.mark.parametrize("room", [0, GRANULE, 6 * MIB, 62 * MIB, 64 * MIB])
def test_a_door_is_asked_until_one_granule_is_refused(room: int) -> None:
    full = doors.fill(Room(room), "buffer", QUOTA)
    assert (full.given, full.code) == (room, OUT_OF_MEMORY)


def test_a_piece_that_no_array_can_be_is_not_the_end_of_it() -> None:
    full = doors.fill(Room(30 * MIB, largest=4 * MIB), "array", QUOTA)
    assert (full.given, full.code) == (30 * MIB, OUT_OF_MEMORY)


@pytest.mark.parametrize("room", [0, GRANULE, 6 * MIB, 62 * MIB, 64 * MIB])
def test_where_there_is_one_heap_a_larger_one_is_asked_for(room: int) -> None:
    process = Room(room, alone=True)
    full = doors.grow(process, "limit", QUOTA)
    assert (full.given, full.code) == (room, OUT_OF_MEMORY)
    assert sum(process.held.values()) == room


@pytest.mark.parametrize("take", [doors.fill, doors.grow])
def test_a_door_without_a_quota_is_not_let_fill_the_card(
    take: Callable[[Doors, str, int], Full],
) -> None:
    process = Room(1 << 50)
    full = take(process, "buffer", QUOTA)
    assert QUOTA < full.given <= 2 * QUOTA
    assert process.most <= 2 * QUOTA


@pytest.mark.parametrize(
    ("door", "full", "holds"),
    [
        ("buffer", Full(QUOTA, [], OUT_OF_MEMORY), True),
        ("buffer", Full(QUOTA - 2 * GRANULE, [], OUT_OF_MEMORY), False),
        ("buffer", Full(QUOTA + GRANULE, [], OUT_OF_MEMORY), False),
        ("buffer", Full(QUOTA, [], INVALID_VALUE), False),
        ("pool_ptsz", Full(QUOTA - 32 * MIB, [], OUT_OF_MEMORY), True),
    ],
)
def test_a_door_holds_that_gives_the_quota_and_refuses_the_next_granule(
    door: str, full: Full, holds: bool
) -> None:
    assert doors._holds(door, QUOTA, full) is holds


@pytest.fixture
def by_name(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    monkeypatch.setattr(doors, "DOORS", ("buffer", "managed", "physical"))
    monkeypatch.setattr(doors, "WAYS", ("linked", "procaddress-per-thread"))
    return {row.name: row for row in doors.rows(driver)}


@pytest.mark.usefixtures("namespaces")
def test_each_account_of_each_door_is_in_the_report(by_name: dict[str, Row]) -> None:
    assert [row for row in by_name.values() if row.held is False or row.missing] == []
    charged = by_name["buffer: charged"].value
    assert isinstance(charged, int)
    assert charged > 3 << 30
    assert by_name["buffer: charged"].note == f"bytes by kind: buffer {charged}"
    assert by_name["buffer: NVML, of the process"].value == charged
    assert by_name["physical: the card has less free by"].value == charged
    assert by_name["physical: kept by the driver"].value == 0
    assert by_name["managed: NVML, of the process"].value == 0
    assert by_name["linked: every door gives the quota and not more"].held


@pytest.mark.usefixtures("namespaces")
def test_a_door_that_holds_nothing_is_a_claim_lost(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has no filter before the driver."""
    monkeypatch.setattr(doors, "DOORS", ("buffer",))
    with tenancy(driver) as tenant:
        monkeypatch.setattr(tenant, "command", list)
        row = doors._by(tenant, "dlopen")
    assert row.held is False
    assert row.note == "buffer: more than the quota was given"


@pytest.mark.usefixtures("namespaces")
def test_a_process_that_ends_costs_its_own_row(driver: Driver) -> None:
    with tenancy(driver) as tenant:
        row = doors._by(tenant, "no such way")
    assert "gave no answer" in row.missing
    assert "no such way" in row.missing


def test_without_a_compiler_and_a_carried_program_it_says_so(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: str) -> None:
        raise NotMeasured("there is no C compiler")

    monkeypatch.setattr(programs, "program", none)
    with pytest.raises(NotMeasured, match="no C compiler"):
        [*doors.rows(driver)]
