# SPDX-License-Identifier: Apache-2.0
"""The audit: at every sample of the driver, which tenants are over their quota, and what follows.

Every step is an event with its figures, logged once it has happened. Freezing, thawing and killing
are jobs of the freeze thread. If a step fails, that is logged as well, and it is tried again at the
next sample.

`look` is the truth thread's; `resumed` may be called by any.
"""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from gpushare.daemon import scheduler_sync
from gpushare.daemon.audit.judge import Judge, Verdict
from gpushare.daemon.cards.driver_client import DriverGeneration, DriverSample
from gpushare.daemon.core.log import log
from gpushare.daemon.freezer import Freezer
from gpushare.daemon.observe.compute_usage import CHECKED
from gpushare.daemon.observe.non_tenant import UnallocatedContainers, Unattributed
from gpushare.daemon.observe.sampler import UsageSampler
from gpushare.daemon.observed import (
    AuditFinding,
    AuditInput,
    ComputeUsage,
    Observations,
    TenantOnCard,
)
from gpushare.daemon.pages.tenants import Pages, Tenants
from gpushare.daemon.policy import BYPASS_LOOKS, BYPASS_MARGIN_PERCENT, SPARED_NS, allowed_percent
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.quota.size import format_size

_MOST_PIDS: Final = 8


def violation_text(verdict: Verdict, card: str) -> str:
    """Return why, in words: "uses 9 GiB on card 0, over its limit of 4 GiB"."""
    sample = verdict.sample
    assert sample is not None
    used, may = format_size(sample.used_bytes), format_size(sample.may_bytes)
    shortfall = ""
    if sample.shortfall_bytes:
        shortfall = f", and the card lacks {format_size(sample.shortfall_bytes)} of another's quota"
    elif sample.has_shortfall:
        shortfall = ", and another container lacks memory within its quota"
    if not sample.may_bytes:
        return f"uses {used} on {card}, of which it has no part{shortfall}"
    return f"uses {used} on {card}, over its limit of {may}{shortfall}"


def _figures(verdict: Verdict) -> dict[str, Any]:
    sample = verdict.sample
    figures: dict[str, Any] = {
        **verdict.entry.identity,
        "card": verdict.uuid,
        "choice": verdict.choice,
    }
    if sample is not None:
        figures |= {
            "used_bytes": sample.used_bytes,
            "limit_bytes": sample.may_bytes,
            "slack_bytes": sample.slack_bytes,
            "has_shortfall": sample.has_shortfall,
            "shortfall_bytes": sample.shortfall_bytes,
            "pids": verdict.pids[:_MOST_PIDS],
        }
    return figures


SUSPECT_SECONDS: Final = 0.05  # three looks more, before half a second is over


class Audit:
    """Judges the tenants of `state`, and has `freezer` do what is decided."""

    def __init__(self, state: DaemonState, freezer: Freezer) -> None:
        self._state = state
        self._observed = state.observed
        self._unallocated = UnallocatedContainers(state.observed)
        self._unattributed = Unattributed(state.observed)
        self._judge = Judge(state.node, state.observed)
        self._freezer = freezer
        self._bypass = BypassControl(state)
        self._frozen: frozenset[str] = frozenset()  # by the audit, for any of their cards
        self._generation: DriverGeneration | None = None
        self._waited = 0.0
        self._events: queue.SimpleQueue[Callable[[int], None]] = queue.SimpleQueue()

    def look(self, now_ns: int | None = None) -> None:
        """Judge by the last sample. `now_ns` is CLOCK_MONOTONIC.

        An error acts on no tenant and does not end the audit: nothing else audits.
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        try:
            while not self._events.empty():
                self._events.get()(now_ns)
            self._look(self._observed.last, now_ns)
            for record, why in self._bypass.look(now_ns):
                self._submit(record.key, "freeze", partial(self._freeze_bypass, record, why))
        except Exception:  # noqa: BLE001 - see above
            log("driver-sample-failed", "error", traceback=traceback.format_exc())

    def resumed(self, key: str) -> None:
        """Note that an operator lets tenant `key` run, which the audit may have frozen."""
        self._events.put(lambda now_ns: self._spare(key, now_ns + SPARED_NS))
        self._state.observed.sample_now.set()

    def mps_bypassed(self, key: str, pid: int) -> None:
        """Freeze or kill a tenant that uses a card without its MPS server; any thread.

        None of the server's limits hold for it, so `audit.over_quota` says how far that goes. It is
        acted on once for each process, which the caller has logged; an operator may resume it.
        """
        record = self._state.ledger.entries.get(key)
        choice = "" if record is None else self._state.node.over_quota_action(record)
        why = f"process {pid} uses the card without its MPS server"
        if choice == "freeze":
            self._submit(key, choice, lambda: self._freezer.freeze(key, "audit", why))
        elif choice == "kill":
            self._submit(key, choice, lambda: self._freezer.kill(key, why))

    def wait(self, slower: int = 1) -> bool:
        """Return when the next sample is due; at once, and True, when a caller cannot wait.

        It is time after `slower` times the usual period.
        """
        hurried = self._state.observed.sample_now.wait(self.period() * slower)
        # Tenants may ask for it, and without an end.
        time.sleep(max(0.0, self._waited + SUSPECT_SECONDS - time.monotonic()))
        self._state.observed.sample_now.clear()
        self._waited = time.monotonic()
        return hurried

    def period(self) -> float:
        """Return how long to wait for the next look, in seconds: less where one is suspected."""
        usual = self._state.node.config.timing.sample_interval_seconds
        is_suspected = any(verdict.is_suspected for verdict in self._judge.verdicts.values())
        return min(usual, SUSPECT_SECONDS) if is_suspected else usual

    def _look(self, look: AuditInput | None, now_ns: int) -> None:
        if look is not None:
            before, self._generation = self._generation, look.sample.generation
            if before is not None and before != self._generation:
                self._judge.begin_anew(now_ns)
                look = None
        if look is not None:
            self._unallocated.look(look)
            self._unattributed.look(look)
        verdicts = self._judge.look(now_ns, look)
        for verdict in verdicts.values():
            self._enforce(verdict)
        self._release(verdicts)
        self._publish(verdicts)

    def _enforce(self, verdict: Verdict) -> None:
        """Have done what a verdict says of one tenant on one card, but for a thaw."""
        if not verdict.actions:
            return
        key, why = verdict.entry.key, ""
        if verdict.sample is not None:
            card = self._state.node.card(verdict.uuid)
            why = violation_text(verdict, f"card {card.index if card else verdict.uuid}")
        figures = _figures(verdict)

        def freeze() -> None:
            self._freezer.freeze(key, "audit", why)
            log("over-quota-frozen", "warning", **figures)

        def killed() -> None:
            log("over-quota-killed", "warning", **figures, reason=why)

        for action in verdict.actions:
            if action == "observe":
                log("over-quota-detected", "info", **figures)
            elif action == "warn":
                log("over-quota-warned", "warning", **figures)
            elif action == "freeze":
                self._submit(key, "freeze", freeze)
            elif action == "kill":
                self._submit(key, "kill", lambda: self._freezer.kill(key, why, killed))
            elif action == "calm":
                log("over-quota-cleared", "info", **figures)

    def _submit(self, key: str, step: str, function: Callable[[], None]) -> None:
        """Have the freeze thread do a step; one that fails is tried again some seconds later."""

        def failed(now_ns: int) -> None:
            self._frozen -= {key}
            self._spare(key, now_ns + _AGAIN_NS)

        def run() -> None:
            try:
                function()
            except (UserError, OSError) as error:
                log("over-quota-action-failed", "error", tenant=key, step=step, error=str(error))
                if step != "thaw":
                    self._events.put(failed)

        self._state.freezing.submit(run)

    def _spare(self, key: str, until_ns: int) -> None:
        self._judge.spare(key, until_ns)
        self._bypass.spared[key] = until_ns

    def _freeze_bypass(self, record: TenantRecord, why: str) -> None:
        self._freezer.freeze(record.key, "audit", why)
        log("gate-bypass-frozen", "warning", **record.identity, reason=why)

    def _release(self, verdicts: Mapping[TenantOnCard, Verdict]) -> None:
        """Thaw the tenants that are to be frozen for none of their cards any more."""
        frozen = frozenset(
            key
            for (key, _), verdict in verdicts.items()
            if verdict.state.level in {"frozen", "killed"}
        )
        records = self._state.ledger.entries
        for key in self._frozen - frozen:
            if key in records:
                own = [verdict for place, verdict in verdicts.items() if place[0] == key]
                self._submit(key, "thaw", partial(self._thaw, key, own))
        self._frozen = frozen

    def _thaw(self, key: str, verdicts: Sequence[Verdict]) -> None:
        if self._freezer.release(key, "audit"):
            for verdict in verdicts:
                log("over-quota-thawed", "info", **_figures(verdict))

    def _publish(self, verdicts: Mapping[TenantOnCard, Verdict]) -> None:
        findings: dict[TenantOnCard, AuditFinding] = {}
        for place, verdict in verdicts.items():
            level, choice = verdict.state.level, verdict.choice
            if level == "quiet":
                continue
            first = AuditFinding(level, choice, 0, 0, time.time())
            before = self._observed.findings.get(place, first)
            figures = verdict.sample or before  # a look that says nothing leaves them as they were
            findings[place] = AuditFinding(
                level, choice, figures.used_bytes, figures.may_bytes, before.since
            )
        self._observed.findings = MappingProxyType(findings)


FULL_SECONDS: Final = 60.0
UNMEASURED_SECONDS: Final = 10.0  # the same, where work on a card changes no figure of the driver
SETTLED_LOOKS: Final = 8  # in full, that found the same
SLOWER: Final = 2  # times the usual period


class IdleBackoff:
    """Decides whether a look may be left out. The truth thread's."""

    def __init__(self, ledger: Ledger, tenants: Tenants, observed: Observations) -> None:
        self._ledger, self._tenants, self._observed = ledger, tenants, observed
        self._looks = 0  # in a row that found the same
        self._sample: DriverSample | None = None
        self._entries: Mapping[str, TenantRecord] | None = None
        self._pages: Mapping[str, Pages] | None = None
        self._full = 0.0  # when the last look in full was
        self._full_seconds = FULL_SECONDS

    @property
    def slower(self) -> int:
        """The number of usual periods that the next look may wait."""
        return SLOWER if self._looks >= SETTLED_LOOKS else 1

    def look(self, sampler: UsageSampler) -> bool:
        """Ask the driver alone, in brief; True where that is all that this look needs.

        It may miss what harms nobody: on a card in use as before, one took what another gave back.
        """
        if self._looks < SETTLED_LOOKS or time.monotonic() - self._full >= self._full_seconds:
            return False
        if self._ledger.entries is not self._entries or self._tenants.pages is not self._pages:
            return False
        sample, last = sampler.peek(), self._observed.last
        if sample is None or last is None or sample != self._sample:  # an XID makes it another
            return False
        self._observed.last = replace(last, sample=sample)  # its sensors may be others
        return True

    def note(self) -> None:
        """Note what a look in full has found."""
        look = self._observed.last
        self._full = time.monotonic()
        if look is None or not self._is_calm(look):
            self._looks, self._sample = 0, None
            return
        sample = look.sample
        same = (
            sample == self._sample
            and look.entries is self._entries
            and self._tenants.pages is self._pages
        )
        self._looks = self._looks + 1 if same else 0
        self._sample, self._entries, self._pages = sample, look.entries, self._tenants.pages
        is_measured = look.owned.keys() <= sample.utilization.keys()
        self._full_seconds = FULL_SECONDS if is_measured else UNMEASURED_SECONDS

    def _is_calm(self, look: AuditInput) -> bool:
        """Whether all cards are idle, and no tenant has more than its quota."""
        observed, sample = self._observed, look.sample
        if observed.findings or observed.unallocated or sample.xids:
            return False
        if any(sample.utilization.values()) or any(
            use.is_active for uses in sample.uses.values() for use in uses
        ):
            return False
        return all(
            observed.usage.driver_bytes[record.key, allocation.uuid] <= allocation.quota_bytes
            for record in look.entries.values()
            for allocation in record.allocations
        )


CHOICE: Final = "freeze"
_AGAIN_NS: Final = 5 * 10**9  # after a freeze failed
_ACTIVE_PERCENT: Final = 1.0
_ACTIVE_WAITS: Final = 0.01

#: The first process of a tenant, because a container may be started once more; and how many samples
#: in a row were above its part.
_Looks = tuple[tuple[int, int], int]


class BypassControl:
    """Finds tenants of `state` that bypass the launch gate, and are to be frozen.

    With `audit: {gate_bypass: freeze}`, the driver's figures of a tenant are compared with what it
    may have of that card. One that bypasses its gate and gets clearly more, several samples in a
    row, is frozen until an operator resumes it: a frozen tenant computes nothing, so no figure can
    thaw it. The truth thread's.
    """

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._looks: dict[TenantOnCard, _Looks] = {}
        self.spared: dict[str, int] = {}  # by key, until when

    def look(self, now_ns: int) -> Iterator[tuple[TenantRecord, str]]:
        """Yield each tenant that is to be frozen by the last sample, and why.

        `now_ns` is CLOCK_MONOTONIC.
        """
        self.spared = {key: until for key, until in self.spared.items() if until > now_ns}
        before, self._looks = self._looks, {}
        for record in self._state.ledger.entries.values():
            if not self._may_be_frozen(record):
                continue
            for allocation in record.allocations:
                place, identity = (record.key, allocation.uuid), (record.pid, record.starttime)
                excess = self._excess(place)
                if not excess:
                    continue
                known, looks = before.get(place, (identity, 0))
                looks = looks + 1 if known == identity else 1
                self._looks[place] = identity, looks
                if looks == BYPASS_LOOKS:
                    yield record, excess

    def _may_be_frozen(self, record: TenantRecord) -> bool:
        state = self._state
        return (
            record.state == "bound"
            and record.shared
            and state.node.config.terms_of(record.namespace).compute == CHOICE
            and record.key not in self.spared
            and not state.ledger.is_frozen(record.key)
        )

    def _excess(self, place: TenantOnCard) -> str:
        """Return what a tenant gets of a card beyond its part, past its gate; empty: nothing."""
        key, uuid = place
        compute = self._state.observed.compute_of(key, uuid)
        if compute.lately_percent is None or compute.silent or not compute.gate_bypassed:
            return ""
        by_card = scheduler_sync.shares_by_card(self._state.node, self._state.ledger)
        shares = by_card.get(uuid, {})
        own = shares.pop(key, None)
        if own is None:
            return ""  # the ledger has changed meanwhile
        others = [
            (share, _is_active(self._state.observed.compute_of(other, uuid)))
            for other, share in shares.items()
        ]
        may = allowed_percent(own, others)
        if may is None or compute.lately_percent <= may + BYPASS_MARGIN_PERCENT:
            return ""
        return (
            f"bypasses the launch gate: the driver measured {compute.lately_percent:.0f} % of the "
            f"card, and it may have {may:.0f} %"
        )


def _is_active(compute: ComputeUsage) -> bool:
    """Whether a tenant uses the card, or wants to."""
    got, waits = compute.cores_used[CHECKED], compute.throttled[CHECKED]
    return (got or 0.0) >= _ACTIVE_PERCENT or (waits or 0.0) >= _ACTIVE_WAITS
