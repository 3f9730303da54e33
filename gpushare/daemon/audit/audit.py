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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from gpushare.daemon.audit.judge import Judge, Rules, Verdict
from gpushare.daemon.cards.driver_client import DriverGeneration, DriverSample
from gpushare.daemon.core.log import log
from gpushare.daemon.freezer.freezer import Freezer
from gpushare.daemon.identity.pid_resolver import PidResolver, ProcessOwners
from gpushare.daemon.observe.non_tenant import UnallocatedContainers, Unattributed
from gpushare.daemon.observe.sampler import UsageSampler
from gpushare.daemon.observed import AuditFinding, AuditInput, TenantOnCard
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.quota.size import format_size

_MOST_PIDS: Final = 8


class Enforcer:
    """Does what verdicts say on `freezer`, by jobs that `submit` takes.

    `failed` is called with the key of a tenant that could not be frozen or killed, by any thread.
    `called` is what a card is called in words, by its uuid.
    """

    def __init__(
        self,
        freezer: Freezer,
        submit: Callable[[Callable[[], Any]], None],
        failed: Callable[[str], None],
        called: Callable[[str], str],
    ) -> None:
        self._freezer = freezer
        self._submit = submit
        self._failed = failed
        self._called = called

    def enforce(self, verdict: Verdict) -> None:
        """Have done what a verdict says of one tenant on one card, but for a thaw."""
        key, why = verdict.entry.key, ""
        if verdict.sample is not None:
            why = violation_text(verdict, self._called(verdict.uuid))
        figures = _figures(verdict)

        def freeze() -> None:
            self._freezer.freeze(key, "audit", why)
            log("over-quota-frozen", "warning", **figures)

        def kill() -> None:
            self._freezer.kill(key, why, killed)

        def killed() -> None:
            log("over-quota-killed", "warning", **figures, reason=why)

        for action in verdict.actions:
            if action == "observe":
                log("over-quota-detected", "info", **figures)
            elif action == "warn":
                log("over-quota-warned", "warning", **figures)
            elif action == "freeze":
                self._submit(partial(self._try, key, "freeze", freeze))
            elif action == "kill":
                self._submit(partial(self._try, key, "kill", kill))
            elif action == "calm":
                log("over-quota-cleared", "info", **figures)

    def release(self, key: str, verdicts: Sequence[Verdict]) -> None:
        """Release the audit's freeze of a tenant, which `verdicts` are about."""

        def thaw() -> None:
            if self._freezer.release(key, "audit"):
                for verdict in verdicts:
                    log("over-quota-thawed", "info", **_figures(verdict))

        self._submit(partial(self._try, key, "thaw", thaw))

    def _try(self, key: str, what: str, do: Callable[[], Any]) -> None:
        try:
            do()
        except (UserError, OSError) as error:
            log("over-quota-action-failed", "error", tenant=key, step=what, error=str(error))
            if what != "thaw":
                self._failed(key)


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
    return f"uses {used} on {card}, over its limit of {may}{shortfall}"


def _figures(verdict: Verdict) -> dict[str, Any]:
    sample, record = verdict.sample, verdict.entry
    found: dict[str, Any] = {
        "tenant": record.key,
        "id": record.id,
        "name": record.title,
        "card": verdict.uuid,
        "choice": verdict.choice,
    }
    if sample is not None:
        found |= {
            "used_bytes": sample.used_bytes,
            "limit_bytes": sample.may_bytes,
            "slack_bytes": sample.slack_bytes,
            "has_shortfall": sample.has_shortfall,
            "shortfall_bytes": sample.shortfall_bytes,
            "pids": verdict.pids[:_MOST_PIDS],
        }
    return found


def _shortfall_bytes(state: DaemonState, place: TenantOnCard) -> int:
    """Return what a card has too little for another tenant's quota, by the driver's figures.

    Only tenants that have reported a shortfall count: one that does not try to allocate lacks
    nothing. What tenants claim about their use is not read.
    """
    look, (own, uuid) = state.observed.last, place
    card = None if state.node.driver is None else state.node.driver.card(uuid)
    if not state.observed.shortfalls or not look or not card or uuid not in look.sample.uses:
        return 0
    free = card.memory_bytes - look.sample.taken_bytes(uuid)
    unused = [
        allocation.quota_bytes - state.observed.usage.driver_bytes(key, uuid)
        for key, where in state.observed.shortfalls
        if key != own and where == uuid and (record := look.entries.get(key)) is not None
        for allocation in record.allocations
        if allocation.uuid == uuid
    ]
    return max(0, max(unused, default=0) - free)


QUICK_SECONDS: Final = 0.1  # where a card is nearly full
SUSPECT_SECONDS: Final = 0.05  # three looks more, before half a second is over
_LACKS_NS: Final = 5 * 10**9  # how long a report of a shortfall counts


class Audit:
    """Judges the tenants of `state`, and has `freezer` do what is decided."""

    def __init__(self, state: DaemonState, freezer: Freezer) -> None:
        self._state = state
        self._observed = state.observed
        self._unallocated = UnallocatedContainers(state.observed)
        self._unattributed = Unattributed(state.observed)
        self._judge = Judge()
        self._actor = Enforcer(freezer, state.freezing.submit, self._failed, self._called)
        self._frozen: frozenset[str] = frozenset()  # by the audit, for any of their cards
        self._generation: DriverGeneration | None = None
        self._waited = 0.0
        self._tight_owned: object = None  # of a look in full
        self._tight = False  # by that look
        self._events: queue.SimpleQueue[Callable[[int], None]] = queue.SimpleQueue()

    def look(self, resolver: PidResolver, now_ns: int | None = None) -> None:
        """Judge by the last sample. `now_ns` is CLOCK_MONOTONIC.

        An error acts on no tenant and does not end the audit: nothing else audits.
        """
        try:
            self._look(
                self._observed.last, resolver, time.monotonic_ns() if now_ns is None else now_ns
            )
        except Exception:  # noqa: BLE001 - see above
            log("driver-sample-failed", "error", traceback=traceback.format_exc())

    def resumed(self, key: str) -> None:
        """Note that an operator lets tenant `key` run, which the audit may have frozen."""
        self._events.put(lambda now_ns: self._judge.resumed(now_ns, key))
        self._state.sample_now.set()

    def wait(self, slower: int = 1) -> bool:
        """Return when the next sample is due; at once, and True, when a caller cannot wait.

        It is time after `slower` times the usual period.
        """
        hurried = self._state.sample_now.wait(self.period() * slower)
        # Tenants may ask for it, and without an end.
        time.sleep(max(0.0, self._waited + SUSPECT_SECONDS - time.monotonic()))
        self._state.sample_now.clear()
        self._waited = time.monotonic()
        return hurried

    def period(self) -> float:
        """Return how long to wait for the next look, in seconds: less where it matters."""
        usual = self._state.node.config.timing.sample_interval_seconds
        if any(verdict.is_suspected for verdict in self._judge.verdicts.values()):
            return min(usual, SUSPECT_SECONDS)
        return min(usual, QUICK_SECONDS) if self._is_tight() else usual

    def _called(self, uuid: str) -> str:
        card = self._state.node.driver.card(uuid) if self._state.node.driver else None
        return f"card {uuid}" if card is None else f"card {card.index}"

    def _failed(self, key: str) -> None:
        self._events.put(lambda now_ns: self._not_frozen(now_ns, key))

    def _not_frozen(self, now_ns: int, key: str) -> None:
        self._frozen -= {key}
        self._judge.undone(now_ns, key)

    def _look(self, look: AuditInput | None, resolver: PidResolver, now_ns: int) -> None:
        while not self._events.empty():
            self._events.get()(now_ns)
        if look is not None and self._is_another(look):
            self._judge.begin_anew(now_ns)
            look = None
        if look is not None:
            self._look_at_non_tenants(now_ns, look, resolver)
        verdicts = self._judge.look(now_ns, look, self._rules(now_ns))
        for verdict in verdicts.values():
            self._actor.enforce(verdict)
        self._release(verdicts)
        self._publish(verdicts)

    def _look_at_non_tenants(self, now_ns: int, look: AuditInput, resolver: PidResolver) -> None:
        """Look at what is no tenant's."""
        driver, action = self._state.node.driver, self._state.node.config.unknown
        if driver is not None:
            self._unallocated.look(look, resolver, ProcessOwners(look.entries).all_of, action)
            memory = {card.uuid: card.memory_bytes for card in driver.cards}
            self._unattributed.look(now_ns, look, memory)

    def _is_another(self, look: AuditInput) -> bool:
        """Whether the driver, its parts or its cards are not those of the look before."""
        before, self._generation = self._generation, look.sample.generation
        return before is not None and before != self._generation

    def _rules(self, now_ns: int) -> Rules:
        driver, lacking = self._state.node.driver, self._recent_shortfalls(now_ns)

        def context_bytes(uuid: str) -> int:
            card = driver.card(uuid) if driver else None
            return driver.contexts.sizes.get(card.model, 0) if driver and card else 0

        def has_shortfall(place: TenantOnCard) -> bool:
            return any(key != place[0] and uuid == place[1] for key, uuid in lacking)

        delay = self._state.node.config.timing.shortfall_kill_seconds
        return Rules(
            self._state.node.over_quota_action,
            context_bytes,
            has_shortfall,
            partial(_shortfall_bytes, self._state),
            int(delay * 10**9) if delay else None,
        )

    def _recent_shortfalls(self, now_ns: int) -> list[TenantOnCard]:
        """Return the tenants and cards with a recent shortfall."""
        shortfalls = self._observed.shortfalls.items()
        return [place for place, one in shortfalls if now_ns - one.seen_ns < _LACKS_NS]

    def _release(self, verdicts: Mapping[TenantOnCard, Verdict]) -> None:
        """Thaw the tenants that are to be frozen for none of their cards any more."""
        frozen = frozenset(
            key for (key, _), one in verdicts.items() if one.state.level in {"frozen", "killed"}
        )
        records = self._state.ledger.entries
        for key in self._frozen - frozen:
            if key in records:
                self._actor.release(key, [one for (k, _), one in verdicts.items() if k == key])
        self._frozen = frozen

    def _publish(self, verdicts: Mapping[TenantOnCard, Verdict]) -> None:
        found: dict[TenantOnCard, AuditFinding] = {}
        for place, verdict in verdicts.items():
            level, before = verdict.state.level, self._observed.findings.get(place)
            if level == "quiet":
                continue
            used, may = before.used_bytes if before else 0, before.may_bytes if before else 0
            if verdict.sample is not None:
                used, may = verdict.sample.used_bytes, verdict.sample.may_bytes
            since = before.since if before else time.time()
            found[place] = AuditFinding(level, verdict.choice, used, may, since)
        self._observed.findings = MappingProxyType(found)

    def _is_tight(self) -> bool:
        """Whether a card with shares has little left, by the last look in full."""
        look = self._observed.last
        owned = None if look is None else look.owned
        if owned is not self._tight_owned:
            self._tight_owned, self._tight = owned, self._has_little(look)
        return self._tight

    def _has_little(self, look: AuditInput | None) -> bool:
        driver = self._state.node.driver
        if driver is None or look is None:
            return False
        shared = {
            one.uuid
            for record in look.entries.values()
            if record.shared
            for one in record.allocations
        }
        return any(
            card.memory_bytes - look.sample.taken_bytes(card.uuid) < card.little_bytes
            for card in driver.cards
            if card.uuid in shared
        )


FULL_SECONDS: Final = 60.0
UNMEASURED_SECONDS: Final = 10.0  # the same, where work on a card changes no figure of the driver
SETTLED_LOOKS: Final = 8  # in full, that found the same
SLOWER: Final = 2  # times the usual period


class IdleBackoff:
    """Decides whether a look may be left out. The truth thread's."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._looks = 0  # in a row that found the same
        self._sample: DriverSample | None = None
        self._entries: Mapping[str, TenantRecord] | None = None
        self._pages: Mapping[str, Pages] | None = None
        self._full = 0.0  # when the last look in full was
        self._full_seconds = FULL_SECONDS

    @property
    def slower(self) -> int:
        """How many times the usual period the next look may wait."""
        return SLOWER if self._looks >= SETTLED_LOOKS else 1

    def look(self, sampler: UsageSampler) -> bool:
        """Ask the driver alone, in brief; True where that is all that this look needs.

        It may miss what harms nobody: on a card in use as before, one took what another gave back.
        """
        state = self._state
        if self._looks < SETTLED_LOOKS or time.monotonic() - self._full >= self._full_seconds:
            return False
        if state.ledger.entries is not self._entries or state.tenants.pages is not self._pages:
            return False
        sample, last = sampler.peek(), state.observed.last
        if sample is None or last is None or sample != self._sample:  # an XID makes it another
            return False
        state.observed.last = replace(last, sample=sample)  # its sensors may be others
        return True

    def note(self) -> None:
        """Note what a look in full has found."""
        state = self._state
        look = state.observed.last
        self._full = time.monotonic()
        if look is None or not self._is_calm(look):
            self._looks, self._sample = 0, None
            return
        sample = look.sample
        same = (
            sample == self._sample
            and look.entries is self._entries
            and state.tenants.pages is self._pages
        )
        self._looks = self._looks + 1 if same else 0
        self._sample, self._entries, self._pages = sample, look.entries, state.tenants.pages
        is_measured = look.owned.keys() <= sample.utilization.keys()
        self._full_seconds = FULL_SECONDS if is_measured else UNMEASURED_SECONDS

    def _is_calm(self, look: AuditInput) -> bool:
        """Whether all cards are idle, and no tenant has more than its quota."""
        observed, sample = self._state.observed, look.sample
        if observed.findings or observed.unallocated or sample.xids:
            return False
        if any(sample.utilization.values()) or any(
            use.utilization for uses in sample.uses.values() for use in uses
        ):
            return False
        return all(
            observed.usage.driver_bytes(record.key, allocation.uuid) <= allocation.quota_bytes
            for record in look.entries.values()
            for allocation in record.allocations
        )
