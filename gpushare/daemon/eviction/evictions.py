# SPDX-License-Identifier: Apache-2.0
"""Evictions: evict, restore and move tenants, one after another on a thread of their own.

A tenant that waits for its restore is restored as soon as its card has room, in the order of the
queue, in which starts with a ticket wait too (placement/waiting.py). For them, and for a request
that has no room, others are evicted as the configuration allows.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Final, Literal, TypeAlias

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import T, Worker
from gpushare.daemon.eviction.checkpoint_client import (
    KILL_HANGS,
    LOCK_SECONDS,
    CheckpointClient,
    CheckpointError,
    major_version,
)
from gpushare.daemon.eviction.preconditions import (
    CannotEvict,
    CannotRestore,
    new_eviction,
    rank_of,
    refuse_unevictable,
    refuse_without_free_memory,
    restored_allocations,
    why_no_room,
    why_not,
    why_not_to,
    write_cards,
)
from gpushare.daemon.eviction.steps import (
    EvictionFailed,
    EvictionSteps,
    NotLocked,
    TenantEnded,
)
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.node import Node
from gpushare.daemon.observed import Observations
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import CardCapacity
from gpushare.daemon.placement.request import NoRoom, PlacementRequest, find_card
from gpushare.daemon.placement.waiting import WaitingRequest
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.protocol import START_SECONDS


class Evictions:
    """Evicts and restores tenants of `state`; any thread may call it, and waits for its turn.

    `worker` is its own. `look` has the decide thread publish what is in the queue now.
    """

    def __init__(
        self,
        state: DaemonState,
        client: CheckpointClient,
        worker: Worker,
        look: Callable[[], None],
    ) -> None:
        self._state, self._client = state, client
        self._steps = EvictionSteps(state, client)
        self._room = RoomMaker(state, self._evict)
        self._worker = worker
        self._look_at_queue = look
        self._waiting = WaitingTenants(state.observed)
        self._lock = threading.Lock()  # of the queue's `claimants`

    # --- requests ---

    def evict(
        self, key: str, reason: str = "", *, held: bool = False, forced: bool = False
    ) -> None:
        """Evict a tenant; CannotEvict, EvictionFailed: it goes on, or what the text says.

        One that is `held` is restored by `restore` alone; `forced`: whatever it claims.
        """
        self._worker.run(lambda: self._evict(key, ("operator", reason), held=held, forced=forced))

    def restore(self, key: str, reason: str = "") -> None:
        """Restore an evicted tenant; NoRoom, CannotRestore, EvictionFailed."""
        self._worker.run(lambda: self._restore(self._record(key), "", "operator", reason))

    def move(self, key: str, card: str, reason: str = "") -> None:
        """Move a tenant to the card with this index or UUID; as evict and restore, NoSuchCard.

        If there is no room after the eviction, it goes back to its own card.
        """
        with self._claimed(by_request=True):
            self._worker.run(lambda: self._move(key, card, reason))

    def want(self, key: str) -> None:
        """Note that a call of an evicted tenant waits for its restore; returns at once."""
        record = self._state.ledger.entries.get(key)
        if record is None or record.eviction is None or key in self._state.observed.waiting:
            return
        self._waiting.add(key)
        self.changed()

    def changed(self) -> None:
        """See what can be restored now, and for whom others are evicted; returns at once."""
        state = self._state
        if state.observed.waiting or state.queue.waiting or state.ledger.has_waiting_tickets:
            self._worker.submit_once(self._serve_waiting)

    def evict_for(
        self,
        request: PlacementRequest,
        name: str,
        is_online: bool,
        retry: Callable[[], TenantRecord],
    ) -> TenantRecord | None:
        """Return what `retry` does once others are evicted for `request`; None: it has no room.

        Until then nothing is restored or granted: what is freed is for this request.
        """
        self._room.refused.clear()
        if not self._room.candidates(is_online=is_online, besides=""):
            return None
        fits = self._room.has_place(request, "")
        make = partial(self._room.make, fits, f"{name} had no room", is_online=is_online)
        with self._claimed(by_request=True):
            return retry() if self._worker.run(make) else None

    @contextlib.contextmanager
    def _claimed(self, *, by_request: bool = False) -> Iterator[None]:
        """Keep what is freed in the block from all that waits, which looks after a request's."""
        queue = self._state.queue
        with self._lock:
            queue.claimants += 1
        try:
            yield
        finally:
            with self._lock:
                queue.claimants -= 1
            if by_request:
                self._state.decide.submit(self._state.ledger.changed)

    def relieve(self, key: str, uuid: str) -> None:
        """Evict a tenant that has burst memory of a card which `key` lacks; returns at once."""
        self._worker.submit(lambda: self._relieve(key, uuid))

    def settle(self) -> None:
        """See how far evictions got that another daemon has left; returns at once."""
        self._worker.submit(self._settle)

    def look(self) -> None:
        """Look again at what waits, and what is evicted; returns at once."""
        state = self._state
        records, observed = state.ledger.entries, state.observed
        observed.unevictable = {
            key: why
            for key, why in observed.unevictable.items()
            if key in records and why_not(records[key], state)
        }
        if observed.waiting or any(record.eviction for record in records.values()):
            self._worker.submit(self._look)
        if state.node.config.driver_released:
            self._worker.submit(self._client.close)

    def close(self, seconds: float) -> None:
        """End the step in progress; nothing runs after."""
        self._worker.submit(self._client.close)
        self._worker.finish(seconds)

    # --- the rest is the evict thread's ---

    def _record(self, key: str) -> TenantRecord:
        record = self._state.ledger.entries.get(key)
        if record is None:
            raise TenantEnded("the container has exited")
        return record

    def _evict(
        self,
        key: str,
        why: tuple[str, str],
        lock_seconds: float = LOCK_SECONDS,
        *,
        held: bool = False,
        forced: bool = False,
    ) -> TenantRecord:
        record = self._record(key)
        refuse_unevictable(record, self._state, forced=forced)
        with self._counted("eviction") as took:
            cgroups = Cgroups.mounted()
            eviction = new_eviction(record, why, cgroups, self._state, held=held)
            evicted = self._steps.evict(record, eviction, cgroups, lock_seconds, forced=forced)
        assert evicted.eviction is not None
        log(
            "tenant-evicted",
            **record.identity,
            cause=why[0],
            reason=why[1],
            evicted_bytes=evicted.eviction.bytes,
            cards=self._indices(evicted.eviction.cards),
            **took,
        )
        return evicted

    @contextlib.contextmanager
    def _counted(self, step: str) -> Iterator[dict[str, Any]]:
        """Count an "eviction" or a "restore"; yield what has its seconds after the block."""
        took: dict[str, Any] = {}
        began, before = time.monotonic(), self._client.driver_seconds
        try:
            yield took
        except EvictionFailed:
            self._count(failures=1)
            raise
        seconds, driver = time.monotonic() - began, self._client.driver_seconds - before
        self._count(**{f"{step}s": 1, f"{step}_seconds": seconds, "driver_seconds": driver})
        took |= {"seconds": round(seconds, 3), "driver_seconds": round(driver, 3)}
        self._state.observed.sample_now.set()

    def _restore(self, record: TenantRecord, to: str, cause: str, reason: str) -> None:
        with self._counted("restore") as took:
            reserved = self._reserved(record, to)
            try:
                refuse_without_free_memory(reserved, self._state.node)
            except CannotRestore as error:  # nothing was asked of the driver yet
                self._waiting.note_fault(record.key, str(error))
                self._steps.record_evicted(reserved)
                raise
            self._steps.restore(reserved)
        before = reserved.eviction
        assert before is not None
        target = tuple(allocation.uuid for allocation in reserved.allocations)
        self._room.restored[record.key] = time.monotonic()
        self._waiting.forget(record.key)
        figures: dict[str, Any] = {
            **record.identity,
            "cause": cause,
            "reason": reason,
            "restored_bytes": before.bytes,
            "from_cards": self._indices(before.cards),
            "cards": self._indices(target),
            **took,
        }
        if target == before.cards:
            log("tenant-restored", **figures)
        else:
            self._count(moves=1)
            log("tenant-moved", **figures)

    def _reserved(self, record: TenantRecord, to: str) -> TenantRecord:
        """Reserve the room of a restore; NoRoom, CannotRestore: it stays evicted."""
        state = self._state

        def reserve() -> TenantRecord:
            now = self._record(record.key)
            if now.eviction is None or now.eviction.state != "evicted":
                raise CannotRestore(f"{now.title} is not evicted")
            if state.ledger.is_frozen(now.key):
                fix = f"gpushare resume {now.title} first"
                raise CannotRestore(f"{now.title} is paused or frozen, and not restored; {fix}")
            state.ledger.integrity.refuse()
            allocations = restored_allocations(now, to, state)
            eviction = replace(now.eviction, state="restoring", since=time.time())
            reserved = state.ledger.evict(now.key, eviction, allocations)
            write_cards(reserved, state.tenants)
            return reserved

        return state.decide.run(reserve)

    def _move(self, key: str, name: str, reason: str) -> None:
        state, record = self._state, self._record(key)
        card = find_card(name, state.node.loaded().cards)
        is_there = [allocation.uuid for allocation in record.allocations] == [card.uuid]
        if record.eviction is None:
            if is_there:
                raise CannotRestore(f"{record.title} is on card {card.index} already")
            refuse_unevictable(record, state)  # whatever the card is
        why = "" if is_there else why_not_to(record, card, state.node)
        if why:
            raise CannotRestore(f"{record.title} cannot be moved to card {card.index}: {why}")
        if record.eviction is None:
            # Before anything is copied; the room is reserved only once it is evicted.
            state.decide.run(lambda: restored_allocations(record, card.uuid, state))
            record = self._evict(key, ("move", reason))
        try:
            self._restore(record, card.uuid, "operator", reason)
        except (NoRoom, CannotRestore):
            with contextlib.suppress(NoRoom, CannotRestore):
                self._restore(self._record(key), "", "operator", "its move had no room")
            raise

    # --- what waits ---

    def _serve_waiting(self) -> None:
        """Restore who waits, or evict others for it, in the order of the queue."""
        queue, waiting = self._state.queue, self._state.observed.waiting
        if self._state.node.driver is None:
            return
        self._state.decide.run(self._look_at_queue)
        ordered = {entry.ticket: entry for entry in queue.waiting}
        # Those that are not in the queue lack something else than room, or are not evicted.
        for key in (*ordered, *(key for key in waiting if key not in ordered)):
            if queue.claimants:
                return  # the end of the request follows
            if key in ordered and not ordered[key].container:
                self._make_room(ordered[key])
                continue
            record = self._state.ledger.entries.get(key)
            if record is None or record.eviction is None or record.eviction.state == "failed":
                self._waiting.forget(key)
            elif key in self._state.observed.restore_faults:
                continue  # until the next `_look`
            elif record.is_off_card and not record.eviction.held:
                self._try_restore(record)

    def _make_room(self, entry: WaitingRequest) -> None:
        """Evict others for a start with a ticket, and grant it."""
        state, ticket = self._state, self._state.ledger.tickets.get(entry.ticket)
        if ticket is None or ticket.is_granted or entry.obstacle:
            return
        if not self._room.candidates(is_online=entry.is_online, besides=""):
            return
        fits = self._room.has_place(entry.request, entry.ticket)
        reason = f"{ticket.name or ticket.title} had no room"
        with self._claimed():
            has_room = self._room.make(fits, reason, is_online=entry.is_online)
        if has_room:
            state.decide.run(self._look_at_queue)

    def _try_restore(self, record: TenantRecord) -> None:
        is_online = record.class_ == "online"
        try:
            try:
                self._restore(record, "", "call", "")
            except NoRoom:
                reason = f"{record.title} uses its card again"
                fits = self._room.has_room_again(record)
                with self._claimed():
                    if not self._room.make(fits, reason, is_online=is_online, besides=record.key):
                        raise
                    self._restore(record, "", "call", "")
        except (EvictionFailed, TenantEnded):
            self._waiting.forget(record.key)  # an event has said so
        except UserError as error:
            self._waiting.tell(record, str(error))

    def _relieve(self, key: str, uuid: str) -> None:
        """Evict one: the tenant reports again while that is not enough."""
        record = self._state.ledger.entries.get(key)
        chosen = self._room.burst_holder(uuid, besides=key)
        if record is None or chosen is None:
            return
        reason = f"{record.title} lacks memory within its quota"
        with contextlib.suppress(UserError):  # it goes on, or an event has said what happened
            self._evict(chosen.key, (chosen.cause, reason))

    # --- now and then ---

    def _settle(self) -> None:
        for record in self._state.ledger.entries.values():
            if record.eviction is None or record.eviction.state == "failed":
                continue
            try:
                self._steps.settle(record)
            except (CheckpointError, OSError) as error:
                log("eviction-unsettled", "error", **record.identity, error=str(error))
            except UserError as error:  # an event has said so
                log("eviction-refused", "info", tenant=record.key, reason=str(error))
        self.changed()

    def _look(self) -> None:
        """Go on with what another step has left, and forget tenants that have ended."""
        records = self._state.ledger.entries
        for times in (self._room.restored, self._room.refused, self._room.slow):
            for key in times.keys() - records.keys():
                del times[key]
        for key in self._state.observed.waiting.keys() - records.keys():
            self._waiting.forget(key)
        states = {record.eviction.state for record in records.values() if record.eviction}
        if states & {"evicting", "restoring"}:  # no step is in progress: this thread does them
            self._settle()
        for record in self._state.ledger.entries.values():
            if record.is_off_card and record.eviction and record.eviction.cause == "offline":
                self._waiting.add(record.key)  # it was evicted while it worked
        self._state.observed.restore_faults = {}  # all are tried again
        self._serve_waiting()

    def _indices(self, uuids: tuple[str, ...]) -> list[int]:
        cards = [self._state.node.loaded().card(uuid) for uuid in uuids]
        return [card.index for card in cards if card is not None]

    def _count(self, **more: float) -> None:
        self._state.observed.evictions = self._state.observed.evictions.plus(**more)


class WaitingTenants:
    """The evicted tenants that wait for their restore: `observed.waiting`; any thread."""

    def __init__(self, observed: Observations) -> None:
        self._observed = observed
        self._lock = threading.Lock()
        self._told: set[str] = set()  # of which an event has said so

    def add(self, key: str) -> None:
        """Note that a tenant waits."""
        with self._lock:
            waiting = self._observed.waiting
            self._observed.waiting = {**waiting, key: waiting.get(key, time.time())}

    def forget(self, key: str) -> None:
        """Note that a tenant waits no more."""
        self._told.discard(key)
        self.note_fault(key, "")
        with self._lock:
            self._observed.waiting = _without(self._observed.waiting, key)

    def note_fault(self, key: str, why: str) -> None:
        """Note what else than room a waiting tenant lacks, "": nothing."""
        others = _without(self._observed.restore_faults, key)
        self._observed.restore_faults = {**others, key: why} if why else others

    def tell(self, record: TenantRecord, why: str) -> None:
        """Log once that a tenant waits."""
        if record.key not in self._told:
            self._told.add(record.key)
            log("tenant-restore-waits", "warning", **record.identity, reason=why)


def _without(values: Mapping[str, T], key: str) -> dict[str, T]:
    return {other: value for other, value in values.items() if other != key}


#: So long a kill waits: an H100 took 0.65 s per GiB, so that 80 GiB take 53 s.
PATIENCE_SECONDS: Final = 60.0
REASON: Final = "before it is killed: the driver hangs on the kill of a restored process"


def kill_hangs(record: TenantRecord, node: Node) -> bool:
    """Whether the kill of a tenant may hang the host: its driver has restored it."""
    if not record.is_restored or record.eviction is not None or node.driver is None:
        return False
    return major_version(node.driver.nvml.driver_version) == KILL_HANGS


class BeforeKill:
    """Postpones kills until the tenant is off its cards; the freeze thread's.

    Killing a live restored process has hung the host with driver 595 (NVIDIA/cuda-checkpoint issue
    53): it is locked and checkpointed first. What cannot be evicted, for example because it is
    frozen, is killed as it is.
    """

    def __init__(self, state: DaemonState, evictions: Evictions) -> None:
        self._state, self._evictions = state, evictions
        self._patience: dict[str, float] = {}  # by the tenant's key: until when (monotonic)

    def postpones(self, record: TenantRecord, again: Callable[[], None]) -> bool:
        """Whether the kill of `record` has to wait: its eviction is begun, or goes on.

        `again` is run by the freeze thread when it need not wait any more.
        """
        for key in self._patience.keys() - self._state.ledger.entries.keys():
            del self._patience[key]
        if record.key not in self._patience:
            if not kill_hangs(record, self._state.node):
                return False
            self._patience[record.key] = time.monotonic() + PATIENCE_SECONDS
            self._state.requests.submit(lambda: self._evict(record, again))
        return time.monotonic() < self._patience[record.key]

    def _evict(self, record: TenantRecord, again: Callable[[], None]) -> None:
        def over() -> None:
            self._patience[record.key] = -inf
            again()

        try:
            self._evictions.evict(record.key, REASON, held=True)
        except UserError as error:
            log("eviction-refused", "info", tenant=record.key, reason=str(error))
        finally:
            self._state.freezing.submit(over)


#: Whether a request has room on these cards.
Fits: TypeAlias = Callable[[Sequence[CardCapacity]], bool]

_ROUNDS: Final = 4
_QUICK_SECONDS: Final = 1.0  # for a candidate's work to end, while there are others
_REFUSED_SECONDS: Final = 30


class RoomMaker:
    """Evicts tenants for a request, or for another tenant, that has no room; the evict thread's.

    An idle tenant is evicted for any other where `idle.action` is evict, a tenant of class offline
    only for one of class online, where `evict.offline` is on. One that was restored is left alone
    for `evict.min_resident`, so that two that need the same room do not take turns without an end;
    one that could not be evicted, for half a minute, or until a start asks that does not wait.

    `evict` is called with a key, the cause and the reason, and for how long work may go on.
    """

    def __init__(
        self, state: DaemonState, evict: Callable[[str, tuple[str, str], float], object]
    ) -> None:
        self._state = state
        self._evict = evict
        #: By key, when a tenant was restored last (monotonic).
        self.restored: dict[str, float] = {}
        #: Likewise, when it could not be evicted, and when its work did not end in time.
        self.refused: dict[str, float] = {}
        self.slow: dict[str, float] = {}

    def candidates(self, *, is_online: bool, besides: str) -> list[EvictionCandidate]:
        """Return the tenants that may be evicted for another one."""
        state, config, now = self._state, self._state.node.config, time.monotonic()
        resident = config.evict.min_resident_seconds
        candidates, kept = list[EvictionCandidate](), dict[str, str]()
        for key, record in state.ledger.entries.items():
            idle = state.observed.idle.get(key)
            if config.terms_of(record.namespace).idle.action != "evict":
                idle = None
            if idle is None and not (config.evict.offline and record.class_ == "offline"):
                continue
            if why := why_not(record, state):
                if record.eviction is None and record.state == "bound":
                    kept[key] = why
                continue
            is_spared = (
                now - self.restored.get(key, -inf) < resident
                or now - self.refused.get(key, -inf) < _REFUSED_SECONDS
            )
            if key == besides or is_spared:
                continue
            size_bytes = sum(allocation.quota_bytes for allocation in record.allocations)
            is_slow = now - self.slow.get(key, -inf) < _REFUSED_SECONDS
            if idle is not None:
                candidates.append(EvictionCandidate(key, "idle", is_slow, idle, bytes=size_bytes))
            elif is_online:
                candidates.append(
                    EvictionCandidate(key, "offline", is_slow, 0.0, record.priority, size_bytes)
                )
        self._tell_kept(kept)
        return candidates

    def _tell_kept(self, kept: Mapping[str, str]) -> None:
        """Show why tenants keep their memory that another one lacks; what is new is an event.

        It may be what they claim: a start that is refused because of that has to be explained.
        """
        before, self._state.observed.unevictable = self._state.observed.unevictable, kept
        for key, why in kept.items():
            if before.get(key) != why:
                log("eviction-refused", "info", tenant=key, reason=why)

    def burst_holder(self, uuid: str, *, besides: str) -> EvictionCandidate | None:
        """Return the tenant to evict that uses the most burst memory of a card, None for none."""
        capacities = self._state.decide.run(self._state.accounts.capacities)
        of_card = [capacity for capacity in capacities if capacity.card.uuid == uuid]
        uses = (use for capacity in of_card for use in capacity.allocations)
        burst = {use.key: use.burst_used_bytes for use in uses if use.burst_used_bytes}
        candidates = self.candidates(is_online=True, besides=besides)
        holders = [holder for holder in candidates if holder.key in burst]
        return max(holders, key=lambda holder: burst[holder.key], default=None)

    def has_place(self, request: PlacementRequest, own: str) -> Fits:
        """Return whether `request` has a place on cards that are withheld for none but `own`."""

        def fits(capacities: Sequence[CardCapacity]) -> bool:
            opened = self._state.queue.open_to(own, capacities, request.rank)
            with contextlib.suppress(UserError):
                return bool(place_request(request, opened, self._state.node.loaded().links))
            return False

        return fits

    def has_room_again(self, record: TenantRecord) -> Fits:
        """Return whether an evicted tenant has room on its own cards, as `has_place`."""

        def fits(capacities: Sequence[CardCapacity]) -> bool:
            opened = self._state.queue.open_to(record.key, capacities, rank_of(record))
            by_uuid = {capacity.card.uuid: capacity for capacity in opened}
            return all(
                part.uuid in by_uuid and not why_no_room(record, number, by_uuid[part.uuid])
                for number, part in enumerate(record.allocations)
            )

        return fits

    def make(self, fits: Fits, reason: str, *, is_online: bool, besides: str = "") -> bool:
        """Evict as many as are needed for what `fits`; whether it has room then.

        One that does not end its work within a second is tried again after all others, with the
        time that is left: an endless kernel delays no start for which others can make room.
        """
        state, rounds, until = self._state, 0, time.monotonic() + START_SECONDS
        while rounds < _ROUNDS and time.monotonic() < until:
            rounds += 1
            capacities = state.decide.run(state.accounts.capacities)
            if fits(capacities):
                return True
            candidates = self.candidates(is_online=is_online, besides=besides)
            for candidate in (chosen := chosen_evictions(candidates, capacities, fits)):
                left = min(LOCK_SECONDS, until - time.monotonic())
                # To the driver, no time at all means no limit.
                patience = max(left if candidate.is_slow else 0.0, _QUICK_SECONDS)
                try:
                    self._evict(candidate.key, (candidate.cause, reason), patience)
                except NotLocked as error:
                    if candidate.is_slow:
                        self._refuse(candidate.key, error)
                    else:
                        rounds -= 1  # the next one does without it, if that can be
                        self.slow[candidate.key] = time.monotonic()
                    break
                except (CannotEvict, EvictionFailed, TenantEnded) as error:
                    self._refuse(candidate.key, error)
            if not chosen:
                return False
        return False

    def _refuse(self, key: str, error: UserError) -> None:
        self.refused[key] = time.monotonic()
        log("eviction-refused", "info", tenant=key, reason=str(error))


Cause = Literal["idle", "offline"]


@dataclass(frozen=True)
class EvictionCandidate:
    """A tenant that may be evicted."""

    key: str
    cause: Cause
    is_slow: bool = False  # its work did not end in time lately
    idle_since: float = 0.0  # of the epoch; 0.0: it is not idle
    priority: int = 0  # 0 is the most important
    bytes: int = 0


def chosen_evictions(
    candidates: Sequence[EvictionCandidate], capacities: Sequence[CardCapacity], fits: Fits
) -> tuple[EvictionCandidate, ...]:
    """Return the tenants to evict so that `fits` holds of the cards without them; none: it cannot.

    As few as possible: first the idle ones, beginning with the one that has been idle the longest,
    then the offline ones, beginning with the least important, and last those that are slow. One is
    added after another until it fits. Those that turn out not to be needed stay.
    """
    taken: list[EvictionCandidate] = []
    for candidate in sorted(  # "idle" comes before "offline"
        candidates,
        key=lambda it: (it.is_slow, it.cause, it.idle_since, -it.priority, it.bytes, it.key),
    ):
        taken.append(candidate)
        if fits(_less(capacities, taken)):
            break
    else:
        return ()
    for candidate in list(taken):
        fewer = [other for other in taken if other is not candidate]
        if fewer and fits(_less(capacities, fewer)):
            taken = fewer
    return tuple(taken)


def _less(
    capacities: Sequence[CardCapacity], evicted: Sequence[EvictionCandidate]
) -> tuple[CardCapacity, ...]:
    keys = {candidate.key for candidate in evicted}
    return tuple(capacity.without(keys) for capacity in capacities)
