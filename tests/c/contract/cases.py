# SPDX-License-Identifier: Apache-2.0
"""The table of cases, cases.inc, and what the program is made from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
LINE = re.compile(r'CASE\((\w+), (\d), (\d), (\d+),\s*"([^"]+)"\)')
#: Where `./dev gpu` saw a case hold: the card, its driver, and how. (docs/measurements)
H100_TENANT = "an H100 with driver 580.159.04, through the interposer library"
SEEN: dict[str, str] = dict.fromkeys(
    (
        "linear_memory_is_counted",
        "small_allocations_share_memory",
        "a_full_card_refuses_every_allocation",
        "physical_memory_is_held_by_its_handle_and_its_mappings",
        "the_memory_of_a_killed_process_is_free",
        "a_process_is_listed_from_its_first_context_to_its_end",
        "a_process_killed_at_any_moment_leaves_nothing",
        "a_forked_child_has_no_driver",
        "the_primary_context_is_one_and_ends_with_its_last_release",
        "a_destroyed_context_leaves_nothing_behind",
        "the_last_detach_destroys",
        "a_limit_is_what_it_was_raised_to_or_what_it_was",
        "work_that_is_not_done_is_not_ready",
        "many_events_are_reached_in_their_order",
        "a_module_takes_memory_until_it_is_unloaded",
        "a_library_takes_memory_where_it_is_used",
        "an_array_is_counted_until_it_is_destroyed",
        "a_mipmap_takes_all_its_levels_at_once",
        "an_upload_takes_the_memory_of_a_graph",
        "what_a_graph_leaves_allocated_must_be_freed_before_it_runs_again",
        "a_graph_over_the_card_is_out_of_memory_until_there_is_room",
        "a_child_graph_takes_memory_with_its_parent",
        "a_node_knows_what_it_allocates",
        "a_captured_allocation_is_one_of_the_graph",
        "what_cannot_be_captured_is_refused_and_spoils_the_capture",
        "small_allocations_of_a_pool_share_memory",
        "a_pool_keeps_up_to_its_threshold_once_the_program_has_waited",
        "a_trim_leaves_what_is_allocated",
        "a_pool_of_the_host_takes_nothing_of_the_card",
        "an_imported_pool_shows_its_makers_memory_and_takes_none",
        "memory_opened_by_ipc_is_its_exporters",
        "memory_opened_by_ipc_outlives_its_exporter",
        "a_symbol_with_a_suffix_is_no_name_or_leads_to_itself",
        "only_processes_with_cuda_have_a_state",
    ),
    H100_TENANT,
)

#: What a tenant's process sees otherwise, by the interposer library, and why.
NOT_FOR_TENANTS = {
    "every_name_is_looked_up_as_the_table_says": "other functions are the driver's own",
    "managed_memory_takes_a_card_from_its_use_there_to_its_free": "it is charged when allocated",
    "managed_memory_moves_between_cards": "it is charged when it is allocated",
    "imported_memory_of_an_ended_maker_is_its_holders": "an import is not charged",
    "each_import_holds_the_memory_by_a_handle_of_its_own": "its size is known from its mappings",
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
