# SPDX-License-Identifier: Apache-2.0
"""What must stay true of gpushare, and the line that upholds each of it.

`python -m tools.mutation invariants` breaks one line after another, and tells whether the tests
that are named beside it fail (mutate.py). `snippet` occurs exactly once in its file. Where code is
renamed or moved, change `file`, `snippet` and `mutation` here; a unit test compares this table with
the tree (tests/unit/dev/test_invariants.py).

The sources are docs/explanation (isolation, failure modes, threat model) and SECURITY.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_DAEMON: Final = "gpushare/daemon"
_TESTS: Final = "tests/unit/daemon"
_THREADS: Final = "tests/threads/daemon"
_LAUNCHER: Final = "tests/c/runtime/test_launcher.py"
_MPS: Final = f"{_TESTS}/test_mps_placement.py"
_QUOTA: Final = "tests/unit/quota"
_LIBRARY: Final = "tests/c/interposer"
_SCHEDULER: Final = "tests/c/scheduler/test_misbehaviour.py"


@dataclass(frozen=True)
class Invariant:
    """One sentence that must stay true, where it is upheld, and how it is broken.

    With `mutation` in place of `snippet` in `file`, one of `tests` ("path::function") must fail.
    """

    sentence: str
    file: str
    snippet: str
    mutation: str
    tests: tuple[str, ...]


INVARIANTS: Final = (
    # --- the start of a container ---
    Invariant(
        "A container that requests nothing never waits for the daemon.",
        "runtime/launcher.c",
        "if (spec.error || spec.marker == MARKER_NONE || !args->id)",
        "if (spec.error || !args->id)",
        (f"{_LAUNCHER}::test_a_container_with_no_marker_starts_without_a_daemon",),
    ),
    Invariant(
        "A container that requests a quota never starts without the daemon.",
        "runtime/launcher.c",
        "if (spec->marker == MARKER_WEAK &&",
        "if (spec->marker != MARKER_NONE &&",
        (f"{_LAUNCHER}::test_without_a_daemon_a_request_is_refused_with_advice",),
    ),
    Invariant(
        "A container that the daemon does not bind does not start.",
        "hooks/hook.c",
        "return done ? 0 : EXIT_FAILED;",
        "return 0;",
        ("tests/c/runtime/test_hook.py::test_a_refused_binding_fails_the_container",),
    ),
    Invariant(
        "A container that its launcher cannot bind does not outlive its create.",
        "runtime/binding.c",
        "if (init > 0 && bind_init(args, config, created, init, &reply))",
        "if (init > 0 || bind_init(args, config, created, init, &reply))",
        ("tests/c/runtime/test_parent.py::test_a_container_that_is_not_bound_is_taken_away",),
    ),
    Invariant(
        "A launcher binds no process but the init of the container that it has created.",
        f"{_DAEMON}/lifecycle/bind.py",
        "if process.parent != record.maker:",
        "if process.parent == 0:",
        (f"{_TESTS}/test_binding.py::test_a_launcher_binds_no_process_but_its_own_child",),
    ),
    Invariant(
        "What runs in a container that was never bound keeps its reservation.",
        f"{_DAEMON}/lifecycle/release.py",
        "if not runs_unbound(record):",
        "if runs_unbound is not None:",
        (f"{_TESTS}/test_binding.py::test_a_container_without_its_launcher_keeps_its_reservation",),
    ),
    Invariant(
        "A container that requests nothing gets no GPU, whatever its image's environment contains.",
        "gpushare/quota/effective_request.py",
        ".requested and cards is None:",
        ".requested and cards is None and visible is None:",
        (
            f"{_QUOTA}/test_effective_request.py::test_the_images_visible_devices_alone_give_nothing",
        ),
    ),
    Invariant(
        "A create that fails leaves the bundle as it was, and no reservation.",
        f"{_DAEMON}/lifecycle/create.py",
        'release.release_tenant(record.key, state, "its container could',
        'print(record.key, state, "its container could',
        (f"{_TESTS}/test_create.py::test_a_failure_after_the_reservation_releases_it",),
    ),
    Invariant(
        "A link in an image leads to nothing outside of the image.",
        "gpushare/oci/rootfs.py",
        "how = _how(flags, resolve)",
        "how = _how(flags, 0)",
        ("tests/unit/oci/test_rootfs.py::test_a_link_to_the_host_leads_nowhere",),
    ),
    Invariant(
        "A hook has an environment of its own, never that of the image.",
        "gpushare/oci/edits.py",
        "if not self.env:",
        "if self.env is None:",
        ("tests/unit/oci/test_spec.py::test_a_hook_without_env_or_timeout_cannot_be_written",),
    ),
    # --- what is requested ---
    Invariant(
        "The environment never enlarges what an annotation grants.",
        "gpushare/quota/parse.py",
        "if (self.layer or self.cards) and self._enlarges(name, requested):",
        "if self.cards and self._enlarges(name, requested):",
        (f"{_QUOTA}/test_precedence.py::test_env_adds_nothing_to_a_grant_that_would_enlarge_it",),
    ),
    Invariant(
        "A request above max_per_request is refused, whoever makes it.",
        "gpushare/quota/request_policy.py",
        "most is None or value <= most or",
        "most is None or value >= 0 or",
        (
            f"{_QUOTA}/test_ceilings.py::test_a_request_at_the_ceiling_is_met_and_one_above_it_is_refused",
        ),
    ),
    Invariant(
        "A strict node refuses a request in two dialects.",
        "gpushare/quota/parse.py",
        "if len(requesting) < 2:",
        "if len(requesting) < 3:",
        (
            f"{_QUOTA}/dialects/test_sources.py::test_a_strict_node_refuses_two_dialects_and_names_both",
        ),
    ),
    Invariant(
        "A pod annotation that names no container is for one container of the pod.",
        f"{_DAEMON}/lifecycle/create.py",
        "for container in others if container != pod.container)",
        'for container in others if container == "")',
        (f"{_TESTS}/test_create.py::test_a_second_container_is_refused_with_the_names_to_write",),
    ),
    # --- nothing is allocated twice ---
    Invariant(
        "The quotas on a card are never more than the memory of the card.",
        f"{_DAEMON}/placement/model.py",
        ".quota_bytes for use in self.holders",
        ".quota_bytes * 0 for use in self.holders",
        (f"{_TESTS}/test_placement.py::test_the_last_byte_can_be_had_and_not_one_more",),
    ),
    Invariant(
        "A card that one container has whole is given to no other.",
        f"{_DAEMON}/placement/model.py",
        ".whole for use in self.holders",
        ".whole and False for use in self.holders",
        (f"{_TESTS}/test_placement.py::test_a_whole_card_is_closed_to_shares",),
    ),
    Invariant(
        "The containers of a ResourceClaim together never have more than it.",
        f"{_DAEMON}/store/claim.py",
        "if allocation.quota_bytes > left.quota_bytes:",
        "if not allocation.quota_bytes:",
        (f"{_TESTS}/test_claims.py::test_containers_of_a_claim_never_have_more_than_it",),
    ),
    Invariant(
        "Only the pods for which a ResourceClaim is reserved may use it.",
        f"{_DAEMON}/lifecycle/scheduled.py",
        "and pod.uid in claim.pods:",
        "and claim.pods:",
        (f"{_TESTS}/test_claims.py::test_a_pod_for_which_the_claim_is_not_reserved_is_refused",),
    ),
    Invariant(
        "Before memory is allocated, no tenant may use it as burst memory any more.",
        f"{_DAEMON}/limits.py",
        "if more <= 0 or",
        "if more or",
        (f"{_TESTS}/test_burst.py::test_burst_memory_is_withdrawn_before_a_reservation_is_made",),
    ),
    Invariant(
        "A tenant never reads a limit below its quota from its page.",
        f"{_DAEMON}/pages/tenants.py",
        "if wanted >= memory.value:",
        "if wanted < memory.value:",
        (f"{_TESTS}/test_pages.py::test_a_page_never_has_a_limit_below_its_quota",),
    ),
    Invariant(
        "The guaranteed shares of a card are never more than the card's time.",
        f"{_DAEMON}/policy.py",
        "guaranteed = divide(_WHOLE - least, guaranteed)",
        "guaranteed = dict(guaranteed)",
        (f"{_TESTS}/test_compute_usage.py::test_no_share_is_allocated_twice_and_none_is_zero",),
    ),
    # --- how long a reservation lasts ---
    Invariant(
        "A reservation lasts while a process is left in the container's cgroup.",
        f"{_DAEMON}/lifecycle/release.py",
        "return not processes.Cgroups.mounted().is_populated(",
        "return bool(",
        (f"{_TESTS}/test_binding.py::test_a_cgroup_with_processes_keeps_its_reservation",),
    ),
    Invariant(
        "A message does not end the reservation of a container that runs.",
        f"{_DAEMON}/service/operations.py",
        "release.handle_process_end(key, self._state)",
        'release.release_tenant(key, self._state, "the runtime says so")',
        (f"{_TESTS}/test_binding.py::test_a_message_ends_no_tenant_whose_process_lives",),
    ),
    Invariant(
        "A process with the PID of one that has ended is not taken for it.",
        f"{_DAEMON}/identity/processes.py",
        "if start_time(pid) != starttime:",
        "if start_time(pid) is None:",
        (f"{_THREADS}/test_processes.py::test_a_pidfd_is_of_the_process_that_started_then",),
    ),
    Invariant(
        "A container is bound to its own reservation only.",
        f"{_DAEMON}/lifecycle/bind.py",
        ".id != identity:",
        '.id == "":',
        (f"{_TESTS}/test_binding.py::test_bind_without_a_reservation_is_refused",),
    ),
    # --- what survives damage ---
    Invariant(
        "A copy of a ledger record whose checksum is wrong is not believed.",
        f"{_DAEMON}/store/record.py",
        'if checksum != b"%08x" % zlib.crc32(body):',
        "if not checksum:",
        (f"{_TESTS}/test_ledger.py::test_a_ledger_that_is_damaged_is_made_again_as_it_was",),
    ),
    Invariant(
        "While a reservation may be unknown, nothing new is reserved.",
        f"{_DAEMON}/store/ledger.py",
        "raise IntegrityLost(self.why)",
        "return",
        (
            f"{_TESTS}/test_ledger.py::test_a_tenant_without_any_record_stops_new_reservations_until_a_release",
        ),
    ),
    # --- permissions ---
    Invariant(
        "Only root may change what others have.",
        f"{_DAEMON}/service/control_server.py",
        "if not self.peer.is_root:",
        "if self.peer.uid < 0:",
        (f"{_TESTS}/test_callers.py::test_each_caller_gets_only_its_operations",),
    ),
    Invariant(
        "A process of a tenant gets no answer on the control socket, even as root.",
        f"{_DAEMON}/service/control_server.py",
        'if self.peer.place == "tenant":',
        'if self.peer.place == "container":',
        (f"{_TESTS}/test_callers.py::test_each_caller_gets_only_its_operations",),
    ),
    # --- a tenant's claims ---
    Invariant(
        "A tenant that claims more than it may use takes nothing from others.",
        f"{_DAEMON}/limits.py",
        "min(claimed, most)",
        "claimed",
        (f"{_TESTS}/test_set.py::test_an_impossible_claim_blocks_no_placement",),
    ),
    Invariant(
        "A report of a shortfall is believed only if the tenant's own page confirms it.",
        f"{_DAEMON}/limits.py",
        "return 0 < size <= used <= ",
        "return 0 < size or used <= ",
        (f"{_TESTS}/test_burst.py::test_a_report_that_its_own_page_contradicts_is_ignored",),
    ),
    Invariant(
        "Whatever tenants claim, they are charged for no more of a card's time than has passed.",
        "scheduler/charge.c",
        "return least(elapsed(before_ns, now_ns), passed_ns);",
        "return passed_ns ? elapsed(before_ns, now_ns) : 0;",
        (f"{_SCHEDULER}::test_a_false_context_count_charges_no_tenant_for_more_than_passed",),
    ),
    # --- the audit ---
    Invariant(
        "A figure of the driver that cannot be rejects the whole sample.",
        f"{_DAEMON}/cards/nvml_client.py",
        "if size is not None and not 0 <= size <= total:",
        "if size is not None and size < 0:",
        (f"{_TESTS}/test_validation.py::test_an_impossible_value_is_refused",),
    ),
    Invariant(
        "A sample that says nothing is no evidence against a container.",
        f"{_DAEMON}/policy.py",
        "return replace(state, looks=0, calm=0, grave_since_ns=None), ()",
        "return state, ()",
        (f"{_TESTS}/test_escalation.py::test_a_sample_without_figures_restarts_the_count",),
    ),
    Invariant(
        "Each process that the driver lists counts once on every card, also where it has no part.",
        f"{_DAEMON}/observe/sampler.py",
        "strays[uuid].append(use)",
        "strays[uuid].sort()",
        (f"{_TESTS}/test_strays.py::test_each_process_counts_once_on_every_card",),
    ),
    Invariant(
        "A container that is over quota is frozen, where the operator chose that.",
        f"{_DAEMON}/policy.py",
        'choice in {"freeze", "kill"}',
        'choice == "kill"',
        (f"{_TESTS}/test_audit.py::test_a_process_without_an_account_is_frozen",),
    ),
    Invariant(
        "A cgroup with a process of another is not frozen.",
        f"{_DAEMON}/identity/processes.py",
        " and path != others.get(name):",
        ":",
        (f"{_TESTS}/test_binding.py::test_only_a_cgroup_that_the_container_alone_has_is_frozen",),
    ),
    # --- in the tenant's process ---
    Invariant(
        "An allocation over the quota is refused before the driver is asked.",
        "libhook/cuda/charge.c",
        "return ledger_reserve(card, kind, bytes) ?",
        "return ledger_count(card, kind, bytes) ?",
        (
            f"{_LIBRARY}/test_allocation_paths.py::test_a_path_takes_the_last_byte_of_the_quota_and_gives_it_back",
        ),
    ),
    Invariant(
        "An allocation that the driver refuses is not charged.",
        "libhook/cuda/charge.c",
        "ledger_release(charge->card, charge->kind, charge->bytes);",
        "(void)charge;",
        (
            f"{_LIBRARY}/test_allocation_paths.py::test_a_path_takes_the_last_byte_of_the_quota_and_gives_it_back",
        ),
    ),
    Invariant(
        "A launch waits at a closed gate.",
        "libhook/share/gate_wait.c",
        "view->obstacle = OBSTACLE_CLOSED;",
        "view->obstacle = OBSTACLE_NONE;",
        (f"{_LIBRARY}/test_gate.py::test_a_gate_holds_its_own_card_only",),
    ),
    # --- what a local user, a tenant or an image can do to others ---
    Invariant(
        "A user without rights fills neither the log nor the history.",
        f"{_DAEMON}/core/log.py",
        "admitted = (self._sources if source else self._own).take(name, now, size)",
        "admitted = True",
        (f"{_TESTS}/test_events.py::test_endless_refusals_of_one_user_do_not_fill_the_log",),
    ),
    Invariant(
        "No other event displaces the audit's events from the history.",
        "gpushare/events_file.py",
        "lasting = int(of_kind.get(1, 0) > of_kind.get(0, 0))",
        "lasting = int(1 in of_kind)",
        (f"{_THREADS}/test_history.py::test_evidence_is_not_displaced_by_other_events",),
    ),
    Invariant(
        "A name that a user chose never stands for another container's ID.",
        f"{_DAEMON}/lifecycle/tenant_names.py",
        "for record in (*by_id, *by_name)}.values())",
        "for record in (by_name or by_id)}.values())",
        (f"{_TESTS}/test_container_names.py::test_a_name_that_is_anothers_id_is_ambiguous",),
    ),
    Invariant(
        "A pod's refusal names no other namespace's pods.",
        f"{_DAEMON}/lifecycle/create.py",
        "is None and not self._in_pod,",
        "is None or not self._in_pod,",
        (f"{_TESTS}/test_create.py::test_a_pods_refusal_names_no_other_pod",),
    ),
    Invariant(
        "No number that a tenant writes is shown or advised above what the card has.",
        f"{_DAEMON}/views/why.py",
        "if most and size > most:",
        "if False:",
        (f"{_TESTS}/test_why.py::test_the_advice_is_never_more_than_the_card",),
    ),
    # --- the queue ---
    Invariant(
        "What is granted to a ticket is promised to nobody else.",
        f"{_DAEMON}/limits.py",
        "self.ledger.reserved_beside(card.uuid, policy, without)",
        "self.ledger.reserved_beside(card.uuid, policy, without)[:0]",
        (
            f"{_TESTS}/test_queue.py::test_a_start_that_fits_is_granted_at_once_and_its_room_is_nobody_else_s",
        ),
    ),
    Invariant(
        "A start that waits is granted once what runs has ended, whatever comes after it.",
        f"{_DAEMON}/placement/waiting.py",
        "withheld |= dict.fromkeys(cards - withheld.keys(), entry)",
        "pass",
        (
            f"{_TESTS}/test_queue.py::test_a_start_that_waits_is_overtaken_by_nothing_that_comes_after_it",
        ),
    ),
    Invariant(
        "An evicted container that waits is restored once what runs has ended, whatever starts.",
        f"{_DAEMON}/lifecycle/queue.py",
        "requests += self._restores.requests(self._next_number())",
        "pass",
        (f"{_TESTS}/test_queue.py::test_no_start_overtakes_a_restore_that_waits",),
    ),
    Invariant(
        "What is evicted for a start is granted to no ticket before the start has it.",
        f"{_DAEMON}/lifecycle/queue.py",
        "is not None and not state.queue.claimants:",
        "is not None:",
        (f"{_TESTS}/test_queue.py::test_what_is_evicted_for_a_start_is_not_granted_to_a_ticket",),
    ),
    Invariant(
        "A start that shows a ticket gets no more than was granted to it.",
        f"{_DAEMON}/lifecycle/reserve.py",
        "ticket.refuse_above(placed)",
        "pass",
        (f"{_TESTS}/test_queue.py::test_a_start_gets_no_more_than_was_granted",),
    ),
    # --- MPS ---
    Invariant(
        "A process on a card in MPS mode is a client of its server, or has no GPU.",
        "libhook/cuda/mps.c",
        "return why ? why : find_server();",
        "return why;",
        (f"{_LIBRARY}/test_mps.py::test_without_the_control_daemon_there_is_no_gpu",),
    ),
    Invariant(
        "A card in MPS mode, whose containers share faults, takes only requests that name it.",
        f"{_DAEMON}/placement/choose.py",
        "if is_mps and request.backend != MPS:",
        "if is_mps and request.backend == MIG:",
        (f"{_MPS}::test_a_request_without_a_backend_is_told_that_it_has_to_name_it",),
    ),
    Invariant(
        "Without trust, no container on a card in MPS mode commands the server of another one.",
        f"{_DAEMON}/placement/choose.py",
        "(one == other or 0 in (one, other))",
        "one == other",
        (
            f"{_MPS}::test_containers_of_one_user_are_on_different_cards_unless_they_trust_each_other",
        ),
    ),
)
