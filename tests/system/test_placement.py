# SPDX-License-Identifier: Apache-2.0
"""Real containers on a machine of eight cards in NVLink pairs, two sockets: where they land."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack import Stack
from tests.stack.bundle import PROBE, Bundle

CARDS = 8
INVALID_DEVICE = 101


@pytest.fixture(scope="module")
def machine() -> Iterator[Stack]:
    with Stack(profile="a100-pcie-pairs", cards=CARDS) as made:
        made.start_daemon()
        yield made


@pytest.mark.gate
def test_a_program_has_the_cards_of_its_container_alone(machine: Stack) -> None:
    """They are numbered from 0, and it need not select them; there is no third."""
    for card, code in (("0", 0), ("1", 0), ("2", INVALID_DEVICE)):
        made = Bundle(
            machine,
            quota={"memory": "2GiB", "devices": "5,6"},
            args=(*PROBE, "--card", card),
        )
        with made.run() as tenant:
            assert tenant.start()["code"] == code
            if code == 0:
                assert tenant.ask("alloc 1073741824")["code"] == 0
                used = {each["index"]: each["used_bytes"] for each in made.tenant["cards"]}
                assert used[5 + int(card)] >= 1 << 30 > used[6 - int(card)]
        made.remove()
