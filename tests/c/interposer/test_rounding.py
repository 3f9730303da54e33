# SPDX-License-Identifier: Apache-2.0
"""Buffers are charged as the driver rounds them."""

from __future__ import annotations

import pytest

from .rank import SIMULATED_CONTEXT, Ranks
from .tenant import MIB


def taken_beside_contexts(group: Ranks) -> int:
    """Return bytes, by the driver."""
    driver = group.container.libraries.parent / "driver" / "libcuda.so.1"
    return int(group[0].ask(f"taken_of_card({str(driver)!r})")) - 3 * SIMULATED_CONTEXT


@pytest.mark.parametrize("size", [MIB + 1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 17 * MIB + 12345])
def test_a_large_buffer_is_charged_at_its_size(size: int, group: Ranks) -> None:
    pointer = group[0].ask(f"alloc({size})")
    assert group.container.tenant.used()[0] == taken_beside_contexts(group) >= size
    group[0].ask(f"free({pointer})")
    assert group.container.tenant.used()[0] == taken_beside_contexts(group) == 0


def test_of_small_buffers_less_than_a_block_is_not_charged(group: Ranks) -> None:
    """The block that they share is the driver's to fill; what is free of it is overhead."""
    for size in (1, 512, 513, 100_000, MIB - 1, MIB):
        group[0].ask(f"[alloc({size}) for _ in range(10)]")
        left = taken_beside_contexts(group) - group.container.tenant.used()[0]
        assert 0 <= left < 2 * MIB


def test_the_last_block_is_allocated_once(group: Ranks) -> None:
    first, second, _ = group
    assert first.ask("result_of(alloc, 97 * MIB)") == 0
    assert second.ask("result_of(alloc, 2 * MIB + 1)") == 2
    assert second.ask("result_of(alloc, 2 * MIB)") == 0
    assert second.ask("result_of(alloc, 1)") == 2
