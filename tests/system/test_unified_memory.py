# SPDX-License-Identifier: Apache-2.0
"""A card whose memory is the machine's: listed without figures, and refused with the reason."""

from __future__ import annotations

import pytest

from gpushare.protocol.rows import UnifiedCard
from tests.stack import Stack
from tests.stack.bundle import Bundle


@pytest.mark.gate
def test_a_card_with_unified_memory_is_listed_and_no_container_starts_on_it() -> None:
    with Stack(profile="gb10") as machine:
        machine.start_daemon()
        (card,) = machine.shown("ls")
        assert card.keys() == UnifiedCard.__annotations__.keys()
        assert (card["model"], card["mode"]) == ("GB10", "unified")
        why = "card 0 (NVIDIA GB10): it has no memory of its own but the machine's"
        assert card["schedulable_reason"].startswith(why)
        table = machine.gpushare("ls").stdout.splitlines()
        assert table[1].split()[:3] == ["0", "GB10", "-"]
        assert table[2] == card["schedulable_reason"]
        for quota in ({"memory": "4GiB"}, {"memory": "4GiB", "devices": card["uuid"]}):
            bundle = Bundle(machine, quota=quota)
            assert card["schedulable_reason"] in bundle.refusal()
