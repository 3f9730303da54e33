# SPDX-License-Identifier: Apache-2.0
"""A status page that another process of the tenant scribbles on, under a program that uses it."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from gpushare import abi

from .conftest import LIGHT_CONTEXT_BYTES, SimulatedContainer
from .container import ProgramContainer
from .rank import Rank
from .tenant import MIB

BORDERS = (
    abi.STATUS_HEADER_HIGH_WATER,
    abi.STATUS_PROCESS_OFFSET,
    abi.STATUS_USAGE_OFFSET,
    *(abi.status_usage_offset(0) + field for field in (abi.USAGE_PENDING, abi.USAGE_EXPORTED)),
    *(abi.status_usage_offset(0) + field for field in (abi.USAGE_IMPORTED, abi.USAGE_DETAIL)),
)
WORDS = (0, 1, 2**31, 2**32 - 1, 2**44 - 1, 2**44, 2**63, 2**64 - 1)


@pytest.fixture
def container(simulated_container: SimulatedContainer, light_profile: Path) -> ProgramContainer:
    made = simulated_container(1, [0], light_profile)
    made.tenant.set_memory(256 * MIB)
    made.tenant.set_context_bytes(LIGHT_CONTEXT_BYTES)
    return made


def scribble(page: int, draw: random.Random) -> None:
    """Write a word where it means something, or anywhere near."""
    place = max(0, draw.choice(BORDERS) + 8 * draw.randrange(-2, 24))
    word = draw.choice(WORDS) if draw.random() < 0.7 else draw.randrange(2**64)
    # The first process's record says that it is there: without it nothing would know it.
    if place // abi.PROCESS_BYTES != abi.STATUS_PROCESS_OFFSET // abi.PROCESS_BYTES:
        os.pwrite(page, struct.pack("<Q", word), place)


@pytest.mark.parametrize("seed", range(6))
def test_a_program_neither_falls_nor_hangs_whatever_the_page_says(
    seed: int, container: ProgramContainer
) -> None:
    draw = random.Random(seed)
    page = os.open(container.tenant.status, os.O_RDWR)
    rank = Rank(container)
    try:
        for _ in range(40):
            scribble(page, draw)
            # By what the page says there may be no room.
            rank.ask(f"result_of(lambda: free(alloc({draw.randrange(1, 64 * MIB)})))")
            left, total = rank.ask("memory()")
            assert 0 <= left <= total == 256 * MIB
    finally:
        rank.end()
        os.close(page)
