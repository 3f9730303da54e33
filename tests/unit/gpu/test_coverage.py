# SPDX-License-Identifier: Apache-2.0
"""What the report claims of each allocation path, on the simulated driver and on a stand-in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.c.interposer import program
from tools.gpu import coverage, programs
from tools.gpu.coverage import MIB, OUT_OF_MEMORY, Allocations, Full
from tools.gpu.driver import DriverPaths
from tools.gpu.filtered import GRANULE, tenancy
from tools.gpu.report import NotMeasured, ReportRow

QUOTA = 64 * MIB
INVALID_VALUE = 1


class Room(Allocations):
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


def test_the_paths_are_those_of_the_unit_tests_that_a_real_driver_has() -> None:
    assert (*coverage.ALLOCATION_PATHS, "external") == program.ALLOCATION_PATHS


@pytest.mark.parametrize("room", [0, GRANULE, 6 * MIB, 62 * MIB, 64 * MIB])
def test_a_path_is_used_until_one_granule_is_refused(room: int) -> None:
    full = coverage.fill(Room(room), "buffer", QUOTA)
    assert (full.given, full.code) == (room, OUT_OF_MEMORY)


def test_a_piece_that_no_array_can_be_is_not_the_end_of_it() -> None:
    full = coverage.fill(Room(30 * MIB, largest=4 * MIB), "array", QUOTA)
    assert (full.given, full.code) == (30 * MIB, OUT_OF_MEMORY)


@pytest.mark.parametrize("room", [0, GRANULE, 6 * MIB, 62 * MIB, 64 * MIB])
def test_with_an_existing_heap_a_larger_one_is_requested(room: int) -> None:
    process = Room(room, alone=True)
    full = coverage.grow(process, "limit", QUOTA)
    assert (full.given, full.code) == (room, OUT_OF_MEMORY)
    assert sum(process.held.values()) == room


@pytest.mark.parametrize("take", [coverage.fill, coverage.grow])
def test_a_path_without_a_quota_is_not_let_fill_the_card(
    take: Callable[[Allocations, str, int], Full],
) -> None:
    process = Room(1 << 50)
    full = take(process, "buffer", QUOTA)
    assert QUOTA < full.given <= 2 * QUOTA
    assert process.most <= 2 * QUOTA


@pytest.mark.parametrize(
    ("path", "full", "holds"),
    [
        ("buffer", Full(QUOTA, [], OUT_OF_MEMORY), True),
        ("buffer", Full(QUOTA - 2 * GRANULE, [], OUT_OF_MEMORY), False),
        ("buffer", Full(QUOTA + GRANULE, [], OUT_OF_MEMORY), False),
        ("buffer", Full(QUOTA, [], INVALID_VALUE), False),
        ("pool_ptsz", Full(QUOTA - 32 * MIB, [], OUT_OF_MEMORY), True),
    ],
)
def test_a_path_that_gives_the_quota_and_refuses_the_next_granule_is_enforced(
    path: str, full: Full, holds: bool
) -> None:
    assert coverage._holds(path, QUOTA, full) is holds


@pytest.fixture
def by_name(driver: DriverPaths, monkeypatch: pytest.MonkeyPatch) -> dict[str, ReportRow]:
    monkeypatch.setattr(coverage, "ALLOCATION_PATHS", ("buffer", "managed", "physical"))
    monkeypatch.setattr(coverage, "LOOKUPS", ("linked", "procaddress-per-thread"))
    return {row.name: row for row in coverage.rows(driver)}


@pytest.mark.usefixtures("namespaces")
def test_each_account_of_each_path_is_in_the_report(by_name: dict[str, ReportRow]) -> None:
    assert [row for row in by_name.values() if row.held is False or row.missing] == []
    charged = by_name["buffer: charged"].value
    assert isinstance(charged, int)
    assert charged > 3 << 30
    assert by_name["buffer: charged"].note == f"bytes by kind: buffer {charged}"
    assert by_name["buffer: NVML, of the process"].value == charged
    assert by_name["physical: the card has less free by"].value == charged
    assert by_name["physical: kept by the driver"].value == 0
    assert by_name["managed: NVML, of the process"].value == 0
    assert by_name["linked: every allocation path gives the quota and not more"].held


@pytest.mark.usefixtures("namespaces")
def test_a_path_that_enforces_nothing_is_a_lost_claim(
    driver: DriverPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has no filter before the driver."""
    monkeypatch.setattr(coverage, "ALLOCATION_PATHS", ("buffer",))
    with tenancy(driver) as tenant:
        monkeypatch.setattr(tenant, "command", list)
        row = coverage._by(tenant, "dlopen")
    assert row.held is False
    assert row.note == "buffer: more than the quota was given"


@pytest.mark.usefixtures("namespaces")
def test_a_process_that_ends_costs_its_own_row(driver: DriverPaths) -> None:
    with tenancy(driver) as tenant:
        row = coverage._by(tenant, "no such lookup")
    assert "gave no answer" in row.missing
    assert "no such lookup" in row.missing


def test_without_a_compiler_and_a_carried_program_it_says_so(
    driver: DriverPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: str) -> None:
        raise NotMeasured("there is no C compiler")

    monkeypatch.setattr(programs, "program", none)
    with pytest.raises(NotMeasured, match="no C compiler"):
        [*coverage.rows(driver)]
