# SPDX-License-Identifier: Apache-2.0
"""Evictions: evict, restore and move tenants, one after another on a thread of their own.

A tenant that waits for its restore is restored as soon as its card has room, in the order of the
queue, in which starts with a ticket wait too (placement/waiting.py). For them, and for a request
that has no room, others are evicted as the configuration allows (room_maker.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import Worker
from gpushare.daemon.eviction.checkpoint_client import (
    KILL_HANGS,
    CheckpointCalls,
    CheckpointError,
    major_version,
    why_unsupported,
)
from gpushare.daemon.eviction.preconditions import (
    CannotRestore,
    evictable_use,
    refuse_unevictable,
)
from gpushare.daemon.eviction.room_maker import RoomMaker, has_place, has_room_again
from gpushare.daemon.eviction.steps import (
    EvictionFailed,
    EvictionSteps,
    TenantEnded,
    identity,
)
from gpushare.daemon.eviction.targets import (
    await_sample,
    refuse_without_free_memory,
    restored_allocations,
    why_not_to,
    write_cards,
)
from gpushare.daemon.placement.request import NoRoom, NoSuchCard, PlacementRequest, find_card
from gpushare.daemon.placement.waiting import WaitingRequest
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError


class Evictions:
    """Evicts and restores tenants of `state`; any thread may call it, and waits for its turn.

    `worker` is its own. `look` has the decide thread publish what is in the queue now.
    """

    def __init__(
        self,
        state: DaemonState,
        client: CheckpointCalls,
        worker: Worker,
        look: Callable[[], None],
    ) -> None:
        self._state = state
        self._client = client
        self._steps = EvictionSteps(state, client)
        self._room = RoomMaker(state, self._evict)
        self._worker = worker
        self._look_at_queue = look
        self._waiting = WaitingTenants(state)
        self._lock = threading.Lock()  # of the queue's `claimants`
        self._is_queued = False

    # --- requests ---

    def evict(self, key: str, reason: str = "", *, held: bool = False) -> None:
        """Evict a tenant; CannotEvict, EvictionFailed: it goes on, or what the text says.

        One that is `held` is restored by `restore` alone.
        """
        self._worker.run(lambda: self._evict(key, "operator", reason, held=held))

    def restore(self, key: str, reason: str = "") -> None:
        """Restore an evicted tenant; NoRoom, CannotRestore, EvictionFailed."""
        self._worker.run(lambda: self._restore(self._record(key), "", "operator", reason))

    def move(self, key: str, card: str, reason: str = "") -> None:
        """Move a tenant to the card with this index or UUID; as evict and restore, NoSuchCard.

        If there is no room after the eviction, it goes back to its own card.
        """
        try:
            with self._claimed():
                self._worker.run(lambda: self._move(key, card, reason))
        finally:
            self._look_again()

    def want(self, key: str) -> None:
        """Note that a call of an evicted tenant waits for its restore; returns at once."""
        record = self._state.ledger.entries.get(key)
        if record is None or record.eviction is None or key in self._waiting.since:
            return
        self._waiting.add(key)
        self.changed()

    def changed(self) -> None:
        """See what can be restored now, and for whom others are evicted; returns at once."""
        state = self._state
        waits = self._waiting.since or state.queue.waiting or state.ledger.has_waiting_tickets
        if waits and not self._is_queued:
            self._is_queued = True
            self._worker.submit(self._serve_waiting)

    def evict_for(
        self,
        request: PlacementRequest,
        is_online: bool,
        reason: str,
        retry: Callable[[], TenantRecord],
    ) -> TenantRecord | None:
        """Return what `retry` does once others are evicted for `request`; None: it has no room.

        Until then nothing is restored or granted: what is freed is for this request.
        """
        self._room.refused.clear()
        if not self._room.candidates(is_online=is_online, besides=""):
            return None
        fits = has_place(request, "", self._state)

        def make() -> bool:
            return self._room.make(fits, reason, is_online=is_online)

        try:
            with self._claimed():
                return retry() if self._worker.run(make) else None
        finally:
            self._look_again()

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[None]:
        """Keep what is freed in the block from all that waits."""
        queue = self._state.queue
        with self._lock:
            queue.claimants += 1
        try:
            yield
        finally:
            with self._lock:
                queue.claimants -= 1

    def _look_again(self) -> None:
        self._state.decide.submit(self._state.ledger.changed)

    def relieve(self, key: str, uuid: str) -> None:
        """Evict a tenant that has burst memory of a card which `key` lacks; returns at once."""
        self._worker.submit(lambda: self._relieve(key, uuid))

    def settle(self) -> None:
        """See how far evictions got that another daemon has left; returns at once."""
        self._worker.submit(self._settle)

    def look(self) -> None:
        """Look again at what waits, and what is evicted; returns at once."""
        records = self._state.ledger.entries.values()
        if self._waiting.since or any(one.eviction for one in records):
            self._worker.submit(self._look)
        self._worker.submit(self._keep_worker)

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

    def _evict(self, key: str, cause: str, reason: str, *, held: bool = False) -> TenantRecord:
        began, before = time.monotonic(), self._client.driver_seconds
        record = self._record(key)
        refuse_unevictable(record, self._state)
        try:
            use = evictable_use(record, self._state)
            evicted = self._steps.evict(record, use, (cause, reason), held=held)
        except EvictionFailed:
            self._count(failures=1)
            raise
        took, driver = time.monotonic() - began, self._client.driver_seconds - before
        self._count(evictions=1, eviction_seconds=took, driver_seconds=driver)
        assert evicted.eviction is not None
        log(
            "tenant-evicted",
            **identity(record),
            cause=cause,
            reason=reason,
            evicted_bytes=evicted.eviction.bytes,
            cards=self._indices(evicted.eviction.cards),
            seconds=round(took, 3),
            driver_seconds=round(driver, 3),
        )
        self._state.sample_now.set()
        return evicted

    def _restore(self, record: TenantRecord, to: str, cause: str, reason: str) -> None:
        began, before = time.monotonic(), self._client.driver_seconds
        reserved = self._reserved(record, to)
        assert reserved.eviction is not None
        size_bytes, source = reserved.eviction.bytes, reserved.eviction.cards
        try:
            self._restore_reserved(reserved)
        except EvictionFailed:
            self._count(failures=1)
            raise
        took, driver = time.monotonic() - began, self._client.driver_seconds - before
        target = tuple(one.uuid for one in reserved.allocations)
        self._room.restored[record.key] = time.monotonic()
        self._waiting.forget(record.key)
        is_move = target != source
        self._count(restores=1, moves=int(is_move), restore_seconds=took, driver_seconds=driver)
        figures: dict[str, Any] = {
            **identity(record),
            "cause": cause,
            "reason": reason,
            "restored_bytes": size_bytes,
            "from_cards": self._indices(source),
            "cards": self._indices(target),
            "seconds": round(took, 3),
            "driver_seconds": round(driver, 3),
        }
        if is_move:
            log("tenant-moved", **figures)
        else:
            log("tenant-restored", **figures)
        self._state.sample_now.set()

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
            write_cards(reserved, state)
            return reserved

        return state.decide.run(reserve)

    def _restore_reserved(self, record: TenantRecord) -> None:
        try:
            await_sample(self._state)
            refuse_without_free_memory(record, self._state)
        except CannotRestore as error:
            self._waiting.note_fault(record.key, str(error))
            self._release_room(record)
            raise
        self._steps.restore(record)

    def _release_room(self, record: TenantRecord) -> None:
        """Record a tenant as evicted again: nothing was asked of the driver yet."""
        assert record.eviction is not None
        back = replace(record.eviction, state="evicted", since=time.time())
        self._steps.record(record, back)

    def _move(self, key: str, name: str, reason: str) -> None:
        state, record = self._state, self._record(key)
        try:
            card = find_card(name, state.accounts.capacities()).card
        except NoSuchCard as error:
            raise CannotRestore(str(error)) from error
        if [one.uuid for one in record.allocations] == [card.uuid] and record.eviction is None:
            raise CannotRestore(f"{record.title} is on card {card.index} already")
        if record.eviction is None:  # whatever the card is
            refuse_unevictable(record, state)
        why = why_not_to(record, card, state)
        if why and [one.uuid for one in record.allocations] != [card.uuid]:
            raise CannotRestore(f"{record.title} cannot be moved to card {card.index}: {why}")
        if record.eviction is None:
            # Before anything is copied; the room is reserved only once it is evicted.
            state.decide.run(lambda: restored_allocations(record, card.uuid, state))
            record = self._evict(key, "move", reason)
        try:
            self._restore(record, card.uuid, "operator", reason)
        except (NoRoom, CannotRestore):
            with contextlib.suppress(NoRoom, CannotRestore):
                self._restore(self._record(key), "", "operator", "its move had no room")
            raise

    # --- what waits ---

    def _serve_waiting(self) -> None:
        """Restore who waits, or evict others for it, in the order of the queue."""
        self._is_queued = False
        queue = self._state.queue
        if self._state.node.driver is None:
            return
        self._state.decide.run(self._look_at_queue)
        ordered = {one.ticket: one for one in queue.waiting}
        # Those that are not in the queue lack something else than room, or are not evicted.
        for key in (*ordered, *(key for key in self._waiting.since if key not in ordered)):
            if queue.claimants:
                return  # `_look_again` follows
            if key in ordered and not ordered[key].container:
                self._make_room(ordered[key])
                continue
            record = self._state.ledger.entries.get(key)
            if record is None or record.eviction is None or record.eviction.state == "failed":
                self._waiting.forget(key)
            elif key in self._waiting.faults:
                continue  # until the next `_look`
            elif record.is_off_card and not record.eviction.held:
                self._try_restore(record)

    def _make_room(self, one: WaitingRequest) -> None:
        """Evict others for a start with a ticket, and grant it."""
        state, ticket = self._state, self._state.ledger.tickets.get(one.ticket)
        if ticket is None or ticket.is_granted or one.obstacle:
            return
        if not self._room.candidates(is_online=one.is_online, besides=""):
            return
        fits = has_place(one.request, one.ticket, state)
        reason = f"{ticket.name or ticket.title} had no room"
        with self._claimed():
            has_room = self._room.make(fits, reason, is_online=one.is_online)
        if has_room:
            state.decide.run(self._look_at_queue)

    def _try_restore(self, record: TenantRecord) -> None:
        is_online = record.class_ == "online"
        try:
            try:
                self._restore(record, "", "call", "")
            except NoRoom:
                reason = f"{record.title} uses its card again"
                fits = has_room_again(record, self._state)
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
            self._evict(chosen.key, chosen.cause, reason)

    # --- now and then ---

    def _settle(self) -> None:
        for record in self._state.ledger.entries.values():
            if record.eviction is None or record.eviction.state == "failed":
                continue
            try:
                self._steps.settle(record)
            except (CheckpointError, OSError) as error:
                log("eviction-unsettled", "error", **identity(record), error=str(error))
            except UserError as error:  # an event has said so
                log("eviction-refused", "info", tenant=record.key, reason=str(error))
        self.changed()

    def _look(self) -> None:
        """Go on with what another step has left, and forget tenants that have ended."""
        records = self._state.ledger.entries
        for key in [*self._room.restored, *self._room.refused, *self._waiting.since]:
            if key not in records:
                self._room.restored.pop(key, None)
                self._room.refused.pop(key, None)
                self._waiting.forget(key)
        unsettled = [
            one
            for one in records.values()
            if one.eviction is not None and one.eviction.state in {"evicting", "restoring"}
        ]
        if unsettled:  # no step is in progress: this thread does them
            self._settle()
        self._restore_offline()
        self._waiting.clear_faults()
        self._serve_waiting()

    def _keep_worker(self) -> None:
        """Have the worker ready where an eviction may be needed at any time, else end it.

        The start of a container would wait for it.
        """
        state = self._state
        terms = (state.node.config.terms, *(one for _, one in state.node.config.namespaces))
        is_needed = state.node.config.evict.offline or any(
            one.idle.action == "evict" for one in terms
        )
        if not is_needed:
            self._client.end_if_idle()
        elif state.node.driver is not None and not why_unsupported(
            state.node.driver.nvml.driver_version
        ):
            with contextlib.suppress(CheckpointError):  # the eviction itself says why
                self._client.prepare()

    def _restore_offline(self) -> None:
        """Have those wait for their restore that were evicted while they worked."""
        for record in self._state.ledger.entries.values():
            if record.is_off_card and record.eviction and record.eviction.cause == "offline":
                self._waiting.add(record.key)

    def _indices(self, uuids: tuple[str, ...]) -> list[int]:
        cards = [self._state.node.loaded().card(uuid) for uuid in uuids]
        return [card.index for card in cards if card is not None]

    def _count(self, **more: float) -> None:
        self._state.observed.evictions = self._state.observed.evictions.plus(**more)


# --- the evicted tenants that wait for their restore; any thread ---


class WaitingTenants:
    """Since when each waits (of the epoch), and what else than room it lacks."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._told: set[str] = set()  # of which an event has said so

    @property
    def since(self) -> Mapping[str, float]:
        """When each tenant began to wait, by key, in the order of arrival."""
        return self._state.observed.waiting

    def add(self, key: str) -> None:
        """Note that a tenant waits."""
        with self._lock:
            self._publish({**self.since, key: self.since.get(key, time.time())})

    def forget(self, key: str) -> None:
        """Note that a tenant waits no more."""
        self._told.discard(key)
        self.note_fault(key, "")
        with self._lock:
            self._publish({one: since for one, since in self.since.items() if one != key})

    def note_fault(self, key: str, why: str) -> None:
        """Note what else than room a waiting tenant lacks, "": nothing."""
        others = {one: text for one, text in self.faults.items() if one != key}
        self._state.observed.restore_faults = {**others, key: why} if why else others

    @property
    def faults(self) -> Mapping[str, str]:
        """What else than room waiting tenants lack, by key."""
        return self._state.observed.restore_faults

    def clear_faults(self) -> None:
        """Have all of them tried again."""
        self._state.observed.restore_faults = {}

    def tell(self, record: TenantRecord, why: str) -> None:
        """Log once that a tenant waits."""
        if record.key not in self._told:
            self._told.add(record.key)
            log("tenant-restore-waits", "warning", **identity(record), reason=why)

    def _publish(self, waiting: Mapping[str, float]) -> None:
        self._state.observed.waiting = MappingProxyType(dict(waiting))


# --- a restored tenant is taken off its cards before it is killed, if the driver needs that ---
#
# Killing a live restored process has hung the host with driver 595 (NVIDIA/cuda-checkpoint issue
# 53): it is locked and checkpointed first. What cannot be evicted, for example because it is
# frozen, is killed as it is.

#: So long a kill waits: a copy of 80 GiB takes 16 s at 5 GiB/s, which others have published.
PATIENCE_SECONDS: Final = 30.0
REASON: Final = "before it is killed: the driver hangs on the kill of a restored process"


@dataclass
class _Attempt:
    """An eviction before a kill; `until` is of the monotonic clock."""

    until: float
    done: bool = False


def kill_hangs(record: TenantRecord, state: DaemonState) -> bool:
    """Whether the kill of a tenant may hang the host: its driver has restored it."""
    if not record.is_restored or record.eviction is not None or state.node.driver is None:
        return False
    return major_version(state.node.driver.nvml.driver_version) == KILL_HANGS


class BeforeKill:
    """Postpones kills; the freeze thread's."""

    def __init__(self, state: DaemonState, evictions: Evictions) -> None:
        self._state, self._evictions = state, evictions
        self._attempts: dict[str, _Attempt] = {}  # by the tenant's key

    def postpones(self, record: TenantRecord, again: Callable[[], None]) -> bool:
        """Whether the kill of `record` has to wait: its eviction is begun, or goes on.

        `again` is run by the freeze thread when it need not wait any more.
        """
        for key in self._attempts.keys() - self._state.ledger.entries.keys():
            del self._attempts[key]
        if not kill_hangs(record, self._state) and record.key not in self._attempts:
            return False
        attempt = self._attempts.get(record.key)
        if attempt is None:
            attempt = self._attempts[record.key] = _Attempt(time.monotonic() + PATIENCE_SECONDS)
            self._state.requests.submit(lambda: self._evict(record, attempt, again))
        return not attempt.done and time.monotonic() < attempt.until

    def _evict(self, record: TenantRecord, attempt: _Attempt, again: Callable[[], None]) -> None:
        try:
            self._evictions.evict(record.key, REASON, held=True)
        except UserError as error:
            log("eviction-refused", "info", tenant=record.key, reason=str(error))
        finally:
            attempt.done = True
            self._state.freezing.submit(again)
