# SPDX-License-Identifier: Apache-2.0
"""The view of a tenant for `ps` and `inspect`: its row, its processes, and its warnings.

This module changes no state.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.eviction.evictions import kill_hangs
from gpushare.daemon.identity import processes
from gpushare.daemon.limits import INTERPOSER
from gpushare.daemon.node import MpsCardState, Node
from gpushare.daemon.observe.time_limits import ends_at, is_near, seconds_left
from gpushare.daemon.observed import Observations
from gpushare.daemon.pages.status_page import ProcessClaim
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.rows import RowLookups, card_index, driver_sum, tenant_row
from gpushare.oci.driver_files import CUDA
from gpushare.protocol import MAX_REPLY_BYTES
from gpushare.protocol.rows import (
    RUN_STATES,
    Intervention,
    ProcessCard,
    TenantCard,
    TenantMps,
    TenantProcess,
    TenantStatus,
)
from gpushare.quota.request import TIME_LIMIT, recorded_text
from gpushare.quota.size import format_size
from gpushare.settings import MPS

# The most that fit one packet.
_MOST_ROW_BYTES: Final = MAX_REPLY_BYTES - 1024
_SURELY_FEW: Final = 24  # entries that fit whatever they contain
_SHORTENED: Final[tuple[Literal["processes", "warnings", "notes"], ...]] = (
    "processes",
    "warnings",
    "notes",
)
_MOST_PROCESSES: Final = 192
_MOST_OWN_DRIVERS: Final = 2  # processes whose mappings are read for one row
_MOST_USES: Final = 256  # of all processes together, one for each card that a process uses


def tenant_status(
    record: TenantRecord, state: DaemonState, lookups: RowLookups | None = None
) -> TenantStatus:
    """Return one row of `gpushare ps`; `lookups` are those of the other rows of the answer."""
    lookups = lookups or RowLookups(state.node, state.ledger)
    row = tenant_row(record, state, lookups)
    pages = state.tenants.pages.get(record.key)
    listed: list[TenantProcessUse] = []
    if record.state == "bound":
        claims = () if pages is None else pages.claims()
        listed = processes_of(record, claims, state.node, state.observed, lookups.cgroups)
    warnings = warnings_of(record, row["cards"], row["interventions"], state)
    return _within_packet(
        {
            **row,
            "reason": record.why,
            "pid": record.pid,
            "weight": record.weight,
            "mps": _mps(record, state),
            "over_quota_action": state.node.over_quota_action(record) if record.shared else "",
            "ends_at": ends_at(record),
            "processes": _process_rows(listed, state.node),
            "quota": {key: recorded_text(value) for key, value in record.quota.items()},
            "notes": list(record.notes),
            "warnings": [*warnings, *own_driver_warnings(record, listed, state.node)],
        }
    )


def _mps(record: TenantRecord, state: DaemonState) -> TenantMps | None:
    """Return what a tenant has of its card's MPS server, None for one that is no client."""
    if record.isolation != MPS or not record.allocations:
        return None
    mps, uuid = state.node.mps, record.allocations[0].uuid
    grant, place = mps.grant_of(record.key), state.node.card(uuid)
    limit = "server" if grant else ""
    return TenantMps(
        percentage=grant.percentage if grant else 100,
        trusted=place is not None and state.node.rule_of(place).mps_trusted,
        memory_limit="cgroup" if record.key in state.limits.clients else limit,
        server_state=mps.cards.get(uuid, MpsCardState()).server_state,
        lost=mps.loss_of(record.key),
    )


def _within_packet(row: TenantStatus) -> TenantStatus:
    """Return `row` short enough for a packet: one tenant must not keep the others from being shown.

    What is left out, as far as it has to be, is the end of the lists that a tenant makes long.
    """

    def is_too_long() -> bool:
        return len(json.dumps(row, separators=(",", ":"))) > _MOST_ROW_BYTES

    if len(row["processes"]) + len(row["warnings"]) + len(row["notes"]) <= _SURELY_FEW:
        return row
    for key in _SHORTENED:
        while row[key] and is_too_long():
            row[key] = row[key][: len(row[key]) // 2]
    return row


class TenantProcessUse(NamedTuple):
    """A process of a tenant, with an account or a use of cards that the driver reports."""

    process: processes.Process | None  # None: exited, or not among the container's processes
    claim: ProcessClaim | None  # None: it has no account
    uses: Sequence[tuple[str, ProcessUse]] = ()  # each with the uuid of its card


def processes_of(
    record: TenantRecord,
    claims: Sequence[ProcessClaim],
    node: Node,
    observed: Observations,
    cgroups: processes.Cgroups,
) -> list[TenantProcessUse]:
    """Return the processes of a tenant that use the driver; those with an account come first."""
    # By process: a tenant chooses how many there are, and each is looked up once for each card.
    used: dict[int, list[tuple[str, ProcessUse]]] = {}
    if node.driver is not None:
        for uuid, use in observed.usage.processes.get(record.key, ()):
            used.setdefault(use.pid, []).append((uuid, use))
    members = processes.members(record.cgroup, record.pid, cgroups)
    by_claim = {(member.namespaced_pid, member.starttime): member for member in members}
    listed = []
    for claim in claims:
        member = by_claim.get((claim.pid, claim.starttime))
        uses = used.get(member.pid, ()) if member else ()
        listed.append(TenantProcessUse(member, claim, uses))
    known = {use.process.pid for use in listed if use.process}
    unaccounted = [member for member in members if member.pid in used and member.pid not in known]
    return listed + [TenantProcessUse(member, None, used[member.pid]) for member in unaccounted]


def _process_rows(listed: Sequence[TenantProcessUse], node: Node) -> list[TenantProcess]:
    running = {use.process.pid: (use.process, use.uses) for use in listed if use.process}
    rows: list[TenantProcess] = []
    left = _MOST_USES
    for _, (process, uses) in sorted(running.items())[:_MOST_PROCESSES]:
        rows.append(_process_row(process, uses[:left], node))
        left -= len(uses[:left])
    return rows


def _process_row(
    process: processes.Process, uses: Sequence[tuple[str, ProcessUse]], node: Node
) -> TenantProcess:
    return TenantProcess(
        pid=process.pid,
        container_pid=process.namespaced_pid,
        name=processes.name_of(process.pid),
        bytes=driver_sum(use.bytes for _, use in uses) if uses else None,
        cards=[
            ProcessCard(index=card_index(uuid, node), bytes=use.bytes, utilization=use.utilization)
            for uuid, use in uses
        ],
    )


# --- what is wrong with it ---


def own_driver_warnings(
    record: TenantRecord, listed: Sequence[TenantProcessUse], node: Node
) -> Iterator[str]:
    """Yield which of a tenant's processes without an account have loaded another libcuda.

    Whoever makes the container cannot know what a program loads by an RPATH or a path of its own.
    """
    if record.isolation != INTERPOSER:
        return
    ours = {_inode(node.libraries / CUDA), _inode(node.host_libraries / CUDA)}
    without = [use.process.pid for use in listed if use.claim is None and use.process]
    for pid in without[:_MOST_OWN_DRIVERS]:
        if path := processes.mapped_driver(pid, ours):
            yield (
                f"{record.title}: process {pid} has loaded {path} and not the interposer library: "
                "it sees the whole card. Remove that file, or what its program finds it by "
                "(LD_LIBRARY_PATH, an RPATH)"
            )


def _inode(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_ino
    return 0


def warnings_of(
    record: TenantRecord,
    cards: Sequence[TenantCard],
    interventions: Sequence[Intervention],
    state: DaemonState,
) -> Iterator[str]:
    """Yield the warnings of `ps` and `inspect`, the most urgent first."""
    for intervention in interventions:
        yield _intervention_warning(record.title, intervention)
    yield from eviction_warnings(record, state)
    action = state.node.config.terms_of(record.namespace).idle.action
    if record.key in state.observed.idle and action not in {"report", "evict"}:
        yield f"{record.title} holds GPU memory and does not use its cards (idle.action: {action})"
    yield from _time_warnings(record)
    for card in cards:
        yield from _card_warnings(record, card, state.node, state.observed)
    for card in cards:
        if record.has_part_of(card["uuid"]):
            yield from _over_quota_warnings(record, card, state.observed)
    yield from _stray_warnings(record, state)


def _stray_warnings(record: TenantRecord, state: DaemonState) -> Iterator[str]:
    """Yield a warning for each card on which the tenant has memory, and of which it has no part."""
    for (key, uuid), finding in state.observed.findings.items():
        if key == record.key and not record.has_part_of(uuid) and finding.choice != "observe":
            why = "although it is evicted" if record.is_off_card else "of which it has no part"
            yield (
                f"{record.title} uses {format_size(finding.used_bytes)} of card "
                f"{card_index(uuid, state.node)}, {why}: it bypasses the interposer library; end "
                f"it with gpushare stop {record.title}"
            )


def _intervention_warning(title: str, intervention: Intervention) -> str:
    why = f": {intervention['reason']}" if intervention["reason"] else ""
    if intervention["by"] == "stop":
        return f"{title} is stopping{why}"
    if intervention["by"] == "engine":
        where = "resume it where it was paused (docker unpause), otherwise"
        return f"{title} is paused, not by gpushare; {where}: gpushare resume {title}"
    how = RUN_STATES.get(intervention["by"], "frozen")
    return f"{title} is {how} ({intervention['by']}{why}); gpushare resume {title} resumes it"


def eviction_warnings(record: TenantRecord, state: DaemonState) -> Iterator[str]:
    """Yield what is wrong with an eviction, or would be with one."""
    eviction = record.eviction
    if eviction is None:
        if kill_hangs(record, state.node):  # cuda-checkpoint issue 53
            driver = state.node.loaded().nvml.driver_version
            yield (
                f"{record.title} was restored by driver {driver}, with which killing a restored "
                f"process has hung a host: end it with gpushare stop {record.title}, which evicts "
                "it first"
            )
        if why := state.observed.unevictable.get(record.key):
            yield f"{record.title} is not evicted for others that have no room: {why}"
        return
    if eviction.state == "failed":
        yield (
            f"{record.title}: the driver has lost its GPU memory ({eviction.error}); stop it with "
            f"gpushare stop {record.title} (gpushare explain evicted)"
        )
    elif record.key in state.observed.waiting:
        yield f"{record.title} uses CUDA while its memory is evicted: {_awaited(record, state)}"


def _awaited(record: TenantRecord, state: DaemonState) -> str:
    """Return what a tenant waits for whose memory is evicted."""
    name = record.title
    if record.eviction is not None and record.eviction.held:
        return f"it waits until gpushare restore {name}"
    if state.ledger.is_frozen(record.key):
        return f"it is paused or frozen, and waits until gpushare resume {name}"
    if fault := state.observed.restore_faults.get(record.key):
        return f"it waits, and gpushared tries again: {fault}"
    if why := state.queue.reasons.get(record.key):
        return f"it waits until a card has room (gpushare queue): {why}"
    return "it waits until a card has room"


def _time_warnings(record: TenantRecord) -> Iterator[str]:
    left = seconds_left(record)
    if left is not None and left > 0 and is_near(record):
        limit = record.quota[TIME_LIMIT]["value"]
        yield (
            f"{record.title} is stopped in {left:.0f} s: its time limit is {limit}; to extend it: "
            f"gpushare set {record.title} --time-limit TIME"
        )


def _card_warnings(
    record: TenantRecord, card: TenantCard, node: Node, observed: Observations
) -> Iterator[str]:
    compute, where = card["compute"], f"{record.title} on card {card['index']}"
    if card["over_limit_bytes"]:
        used, limit, over = map(
            format_size, (card["used_bytes"], card["limit_bytes"], card["over_limit_bytes"])
        )
        yield (
            f"{record.title} uses {used} of {limit} on card {card['index']}: "
            f"allocations fail until it frees {over}"
        )
    yield from charge_warnings(record, card, node, observed)
    yield from _mps_warnings(record, where, node)
    # A whole card may run a server as it likes; a share's server is the host's, through a mount, or
    # one in its container, and no fault of another client stays apart from it.
    uses = observed.usage.processes.get(record.key, ()) if record.isolation != MPS else ()
    pids = [use.pid for uuid, use in uses if uuid == card["uuid"] and use.is_mps]
    if pids and record.shared:
        yield (
            f"{where}: uses an MPS server that gpushare did not start (process {pids[0]}): a fatal "
            "fault of any client of that server ends it (gpushare explain mps)"
        )
    if compute["is_hung"]:
        yield (
            f"{where}: work is pending that appears never to complete. The container is charged "
            "for it; others are not affected"
        )


def charge_warnings(
    record: TenantRecord, card: TenantCard, node: Node, observed: Observations
) -> Iterator[str]:
    """Yield where the driver contradicts the charge of a tenant's compute, with both figures."""
    where = f"{record.title} on card {card['index']}"
    usage = observed.compute_of(record.key, card["uuid"])
    if usage.gate_bypassed and node.config.terms_of(record.namespace).compute != "observe":
        how = "work bypasses the launch gate"
        if usage.claimed_percent and (usage.ungated_percent or 0.0) > usage.claimed_percent / 4:
            how = "it launches work while its gate is closed"
        yield (
            f"{where}: charged {usage.charged_percent or 0.0:.0f} %, the driver measured "
            f"{usage.driver_percent or 0.0:.0f} %: {how}"
        )
    elif usage.correction_percent > 0:
        yield (
            f"{where}: charged {usage.charged_percent or 0.0:.0f} %, the driver measured "
            f"{usage.driver_percent or 0.0:.0f} %: it gets less, but half of its share at least"
        )
    if usage.overcharged:
        yield (
            f"{where}: charged {usage.charged_percent:.0f} %, the driver measured "
            f"{usage.driver_percent:.0f} %: another container bypasses the launch gate and slows "
            "this one"
        )


def _mps_warnings(record: TenantRecord, where: str, node: Node) -> Iterator[str]:
    """Yield what is wrong with a client of an MPS server that gpushare runs."""
    if record.isolation != MPS:
        return
    loss = node.mps.loss_of(record.key)
    if loss:
        yield f"{where}: {loss}. Restart the container (gpushare explain mps-neighbour)"
    pid = node.mps.bypass_of(record.key)
    if pid:
        yield (
            f"{where}: process {pid} uses the card without its MPS server: none of the server's "
            "limits hold for it (gpushare explain mps)"
        )


def _over_quota_warnings(
    record: TenantRecord, card: TenantCard, observed: Observations
) -> Iterator[str]:
    """Yield the audit's warnings, unless the operator chose to observe only."""
    finding = observed.findings.get((record.key, card["uuid"]))
    if finding is None or finding.choice == "observe":
        return
    if finding.used_bytes <= card["limit_bytes"]:
        return  # its quota was raised since: the next sample reports it
    used, may = format_size(finding.used_bytes), format_size(finding.may_bytes)
    fix = f"free memory, or run gpushare set {record.title} --memory SIZE"
    if finding.level == "frozen":
        fix = f"it cannot free memory while it is frozen: gpushare set {record.title} --memory SIZE"
        fix += f", gpushare resume {record.title} (for a minute), or gpushare stop {record.title}"
    yield (
        f"{record.title} uses {used} of card {card['index']} according to the driver, over its "
        f"limit of {may}: "
        f"it bypasses the interposer library; {fix}"
    )
