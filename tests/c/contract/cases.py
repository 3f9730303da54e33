# SPDX-License-Identifier: Apache-2.0
"""The table of cases, cases.inc, and what the program is made from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
LINE = re.compile(r'CASE\((\w+), (\d), (\d), (\d+),\s*"([^"]+)"\)')
#: Where `./dev gpu` saw each case hold, without gpushare. (docs/measurements)
SEEN_ON = "an H200 with driver 580.159.04"
#: But these, which take two cards or NVSwitch: what they say comes from their source alone.
UNSEEN = frozenset(
    (
        "managed_memory_moves_between_cards",
        "bound_memory_is_held_by_its_multicast_object",
        "a_process_moves_to_another_card_with_all_that_it_has",
        "both_forms_tell_the_same_time_between_events",
    )
)

#: What a tenant's process sees otherwise, by the interposer library, and why.
NOT_FOR_TENANTS = {
    "every_name_is_looked_up_as_the_table_says": "other functions are the driver's own",
    "managed_memory_takes_a_card_from_its_use_there_to_its_free": "it is charged when allocated",
    "managed_memory_moves_between_cards": "it is charged when it is allocated",
    "each_import_holds_the_memory_by_a_handle_of_its_own": "its size is known from its mappings",
    **dict.fromkeys(
        (
            "the_states_of_a_checkpoint_follow_one_another",
            "a_caller_without_cuinit_takes_a_process_off_its_card",
            "the_memory_of_a_checkpointed_process_is_anothers",
            "a_restore_without_room_is_the_last",
            "managed_memory_cannot_leave",
            "a_checkpoint_ends_the_sharing_of_memory_unnoticed",
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
