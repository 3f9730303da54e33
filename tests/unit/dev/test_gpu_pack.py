# SPDX-License-Identifier: Apache-2.0
"""What travels to a machine with a card fits there."""

from __future__ import annotations

import pytest

from tools.gpu.pack import CARRIED_MOST, MIB, PackSizes, refusal


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        (PackSizes(CARRIED_MOST, 19 * MIB), ""),
        (PackSizes(CARRIED_MOST + MIB, 0), "build/carried is 46.0 MiB, more than 45 MiB"),
        (PackSizes(CARRIED_MOST, 20 * MIB), "what travels is 65.0 MiB, more than 64 MiB"),
    ],
)
def test_too_much_is_refused(sizes: PackSizes, why: str) -> None:
    assert refusal(sizes) == why
