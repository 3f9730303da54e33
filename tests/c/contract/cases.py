# SPDX-License-Identifier: Apache-2.0
"""The table of cases, cases.inc, and what the program is made from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
LINE = re.compile(r'CASE\((\w+), (\d), (\d), (\d+),\s*"([^"]+)"\)')
#: Where `./dev gpu contract` saw a case hold: the card, and its driver. No card has been tried yet.
SEEN: dict[str, str] = {}

#: What a tenant's process sees otherwise, by the interposer library, and why.
NOT_FOR_TENANTS = {
    "every_name_is_looked_up_as_the_table_says": "other functions are the driver's own",
    "managed_memory_is_counted_where_it_was_prefetched_to": "it is charged when it is allocated",
    "managed_memory_moves_between_cards": "it is charged when it is allocated",
    "a_managed_variable_is_not_on_the_card": "it is charged when it is loaded",
    "imported_memory_of_an_ended_maker_is_its_holders": "an import is not charged",
    **dict.fromkeys(
        (
            "the_states_of_a_checkpoint_follow_one_another",
            "a_caller_without_cuinit_takes_a_process_off_its_card",
            "the_memory_of_a_checkpointed_process_is_anothers",
            "a_restore_without_room_is_the_last",
            "managed_and_shared_memory_cannot_leave",
            "calls_wait_until_the_unlock",
            "a_lock_gives_up_at_its_timeout",
            "a_killed_process_leaves_nothing_in_any_state",
            "a_process_moves_to_another_card_with_all_that_it_has",
        ),
        "a tenant takes no process off its cards",
    ),
}


class Case(NamedTuple):
    """One statement about a driver, and what says so."""

    name: str
    runs: int
    cards: int
    cuda_version: int
    source: str


def cases() -> list[Case]:
    """Return every case, in the order of the table."""
    found = LINE.findall((FOLDER / "cases.inc").read_text(encoding="utf-8"))
    return [
        Case(name, int(runs), int(cards), int(version), source)
        for name, runs, cards, version, source in found
    ]


def sources() -> tuple[str, ...]:
    """Return the files of the program."""
    return tuple(sorted(path.name for path in FOLDER.glob("*.c")))
