# SPDX-License-Identifier: Apache-2.0
"""The steps of an eviction and of a restore: all processes of a tenant, or none. One thread's.

    evict    record evicting > close the gate > lock all > checkpoint each > record evicted
    restore  record restoring, with its room > restore each > unlock all > open the gate > record

The gate is the word `evicted` of the grant page: a call of the driver that finds it set asks for
the restore and waits, so that none blocks in the driver, where nothing would see it. What a step
has led to where it failed, or where gpushared was killed, the driver says (`settle`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.eviction import checkpoint_api
from gpushare.daemon.eviction.checkpoint_client import CheckpointCalls, CheckpointError
from gpushare.daemon.eviction.preconditions import (
    CannotEvict,
    CannotRestore,
    EvictableUse,
    driver_processes,
)
from gpushare.daemon.eviction.targets import origin
from gpushare.daemon.identity import processes
from gpushare.daemon.limits import driver_limits
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import EvictedProcess, EvictionRecord, TenantRecord
from gpushare.errors import UserError

#: For threads that have passed the gate and not reached the driver yet.
GRACE_SECONDS: Final = 0.0005
#: After these a restore fails for ever (NVIDIA/cuda-checkpoint issue 44): OUT_OF_MEMORY,
#: OPERATING_SYSTEM.
_LOST: Final = frozenset({2, 304})


class EvictionFailed(UserError):
    """The driver could not do it; the text says what was put back, and what could not be."""


class TenantEnded(UserError):
    """The tenant has ended meanwhile."""


class EvictionSteps:
    """Has the steps done by `client`, and records each in the ledger of `state`."""

    def __init__(self, state: DaemonState, client: CheckpointCalls) -> None:
        self._state = state
        self._client = client

    def evict(
        self,
        record: TenantRecord,
        use: EvictableUse,
        why: tuple[str, str],
        *,
        held: bool = False,
    ) -> TenantRecord:
        """Evict a tenant whose eviction is possible; CannotEvict, EvictionFailed, TenantEnded.

        `why` is the cause, and the reason in words.
        """
        eviction = EvictionRecord(
            "evicting",
            time.time(),
            *why,
            use.processes,
            use.card_bytes,
            tuple(one.uuid for one in record.allocations),
            held=held,
        )
        self.record(record, eviction)
        self._gate(record, closed=True)
        time.sleep(GRACE_SECONDS)
        try:  # no new one can begin by now
            found = driver_processes(record, self._state, use.cgroups)
        except CannotEvict:
            self._open(record)
            raise
        if found != eviction.processes:
            eviction = replace(eviction, processes=found)
            self.record(record, eviction)
        try:
            self._lock(record, eviction)
        except CheckpointError as error:
            self._put_back(record, eviction, f"it could not be locked ({error})")
        try:
            self._checkpoint(eviction)
        except CheckpointError as error:
            self._put_back(record, eviction, str(error))
        return self.record(record, replace(eviction, state="evicted", since=time.time()))

    def restore(self, record: TenantRecord) -> TenantRecord:
        """Restore a tenant to its allocations; EvictionFailed, TenantEnded.

        The record is of state "restoring" by now: the room is reserved.
        """
        eviction = _eviction_of(record)
        pairs = self._pairs(record)
        try:
            for process in self._living(eviction):
                self._restore_process(process, eviction, pairs)
        except CheckpointError as error:
            self._back_to_evicted(record, eviction, error)
        return self._finish(record, eviction)

    def settle(self, record: TenantRecord) -> None:
        """Find out from the driver how far an eviction got, and go on from there.

        After a restart, and where a worker was killed in the middle. CheckpointError: not known.
        """
        eviction = _eviction_of(record)
        living = self._living(eviction)
        states = [self._client.state(one.pid) for one in living]
        if checkpoint_api.FAILED in states:
            number = living[states.index(checkpoint_api.FAILED)].pid
            self._record_failed(record, eviction, f"process {number} is in state failed")
        elif all(one == checkpoint_api.CHECKPOINTED for one in states):
            if eviction.state != "evicted":
                self.record(record, replace(eviction, state="evicted", since=time.time()))
        elif eviction.state == "evicted":
            self._found_on_card(record, eviction)
        else:
            # The room is reserved in both states: what is in host memory comes back.
            try:
                for process, found in zip(living, states, strict=True):
                    if found == checkpoint_api.CHECKPOINTED:
                        self._restore_process(process, eviction, self._pairs(record))
            except CheckpointError as error:
                self._back_to_evicted(record, eviction, error)
            self._finish(record, eviction)

    def _restore_process(
        self,
        process: EvictedProcess,
        eviction: EvictionRecord,
        pairs: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Restore a process, unless it has ended; CheckpointError."""
        try:
            self._client.restore(process.pid, eviction.bytes, pairs)
        except CheckpointError as error:
            if is_same(process) and not self._is_on_card(process, error):
                error.is_final = error.code in _LOST
                raise

    def _is_on_card(self, process: EvictedProcess, error: CheckpointError) -> bool:
        """Whether the driver refuses to restore a process because that is done by now.

        It completes a call whose worker was killed, for example together with gpushared.
        """
        if error.code != checkpoint_api.ILLEGAL_STATE:
            return False
        return self._client.state(process.pid) in {checkpoint_api.LOCKED, checkpoint_api.RUNNING}

    def _pairs(self, record: TenantRecord) -> list[tuple[str, str]]:
        """Return each card that the memory came from with the one that it goes to; none: the same.

        If one is another, all have to be named (cuda.h).
        """
        pairs = [
            (origin(record, number), one.uuid) for number, one in enumerate(record.allocations)
        ]
        return pairs if any(before != after for before, after in pairs) else []

    def _lock(self, record: TenantRecord, eviction: EvictionRecord) -> None:
        living = self._living(eviction)
        if not living:
            raise TenantEnded(f"{record.title} has ended")
        errors = self._client.lock([one.pid for one in living])
        for process, error in zip(living, errors, strict=True):
            if error is not None and is_same(process):
                raise error

    def _checkpoint(self, eviction: EvictionRecord) -> None:
        for process in self._living(eviction):
            try:
                self._client.checkpoint(process.pid, eviction.bytes)
            except CheckpointError:
                if is_same(process):
                    raise

    def _put_back(self, record: TenantRecord, eviction: EvictionRecord, why: str) -> None:
        """Have a tenant go on whose eviction failed; always raises EvictionFailed."""
        text = f"{record.title} could not be evicted: {why}"
        try:
            self._release_all(eviction)
        except CheckpointError as error:
            self._give_up(record, eviction, f"{why}; then {error}", error)
            raise EvictionFailed(f"{text}, nor could it be put back: {error}") from error
        self._open(record)
        log("tenant-eviction-failed", "warning", **identity(record), error=why)
        raise EvictionFailed(f"{text}. It goes on as before")

    def _release_all(self, eviction: EvictionRecord) -> None:
        """Restore what is in host memory, and unlock all; CheckpointError where that is not so."""
        for process in self._living(eviction):
            found = self._client.state(process.pid)
            if found == checkpoint_api.FAILED:
                raise CheckpointError(f"process {process.pid} is in state failed", is_final=True)
            if found == checkpoint_api.CHECKPOINTED:
                self._restore_process(process, eviction)
        self._unlock_all(eviction)

    def _unlock_all(self, eviction: EvictionRecord) -> None:
        for process in self._living(eviction):
            if self._client.state(process.pid) == checkpoint_api.LOCKED:
                try:
                    self._client.unlock(process.pid)
                except CheckpointError:
                    if is_same(process):
                        raise

    def _back_to_evicted(
        self, record: TenantRecord, eviction: EvictionRecord, error: CheckpointError
    ) -> None:
        """Have all of a tenant evicted again whose restore failed; always raises EvictionFailed."""
        living = self._living(eviction)
        why = str(error)
        try:
            self._checkpoint_again(living, eviction, error)
        except CheckpointError as again:
            if again is not error:
                why = f"{why}; then {again}"
            self._give_up(record, eviction, why, again)
            fix = "gpushared will ask the driver again"
            if again.is_final:
                fix = f"Its memory is lost to it; stop it with gpushare stop {record.title}"
            raise EvictionFailed(f"{record.title} cannot be restored: {why}. {fix}") from error
        self.record(record, replace(eviction, state="evicted", since=time.time()))
        log("tenant-restore-failed", "warning", **identity(record), error=why)
        raise EvictionFailed(f"{record.title} could not be restored: {why}. It stays evicted")

    def _checkpoint_again(
        self, living: list[EvictedProcess], eviction: EvictionRecord, error: CheckpointError
    ) -> None:
        """Evict again what was restored before `error`; raise it if nothing can be restored."""
        states = [self._client.state(one.pid) for one in living]
        error.is_final = error.is_final or checkpoint_api.FAILED in states
        if error.is_final:
            raise error
        for process, found in zip(living, states, strict=True):
            if found == checkpoint_api.LOCKED:
                self._client.checkpoint(process.pid, eviction.bytes)

    def _finish(self, record: TenantRecord, eviction: EvictionRecord) -> TenantRecord:
        """Let a tenant go on whose memory is on its cards."""
        try:
            self._unlock_all(eviction)
        except CheckpointError as error:
            self._give_up(record, eviction, str(error), error)
            raise EvictionFailed(f"{record.title} could not be unlocked: {error}") from error
        return self._open(record)

    def _open(self, record: TenantRecord) -> TenantRecord:
        """Record that a tenant is evicted no more, and let its calls pass."""
        opened = self.record(record, None)
        self._gate(record, closed=False)
        return opened

    def _found_on_card(self, record: TenantRecord, eviction: EvictionRecord) -> None:
        """Note a tenant that another program has restored: its memory counts, room or not."""
        log("tenant-eviction-bypassed", "error", **identity(record))
        self._finish(record, eviction)

    def _give_up(
        self, record: TenantRecord, eviction: EvictionRecord, why: str, error: CheckpointError
    ) -> None:
        """Record that a tenant is lost; one of which nothing is known is left to `settle`."""
        if error.is_final:
            self._record_failed(record, eviction, why)
        else:
            log("eviction-unsettled", "error", **identity(record), error=why)

    def _record_failed(self, record: TenantRecord, eviction: EvictionRecord, why: str) -> None:
        failed = replace(eviction, state="failed", since=time.time(), error=why)
        self.record(record, failed)
        log("tenant-eviction-lost", "error", **identity(record), error=why)

    def _living(self, eviction: EvictionRecord) -> list[EvictedProcess]:
        return [one for one in eviction.processes if is_same(one)]

    def _gate(self, record: TenantRecord, *, closed: bool) -> None:
        pages = self._state.tenants.pages.get(record.key)
        if pages is not None:
            pages.look(lambda held: held.grant.set_evicted(evicted=closed), None)

    def record(self, record: TenantRecord, eviction: EvictionRecord | None) -> TenantRecord:
        """Record it, unless the tenant has ended meanwhile: TenantEnded."""
        state = self._state

        def write() -> TenantRecord:
            now = state.ledger.entries.get(record.key)
            if now is None or (now.pid, now.starttime) != (record.pid, record.starttime):
                raise TenantEnded(f"{record.title} has ended")
            written = state.ledger.evict(record.key, eviction)
            if eviction is not None and eviction.state == "evicted":
                withdraw_burst(written, state)
            return written

        return state.decide.run(write)


def withdraw_burst(record: TenantRecord, state: DaemonState) -> None:
    """Let an evicted tenant have no more than its quota when it is restored; the decide thread."""
    for number, allocation in enumerate(record.allocations):
        if allocation.burst_limit_bytes > allocation.quota_bytes:
            driver_limits.change_limit(record, number, allocation.quota_bytes, state)


def is_same(process: EvictedProcess) -> bool:
    """Whether a process has not ended."""
    return processes.start_time(process.pid) == process.starttime


def identity(record: TenantRecord) -> dict[str, str]:
    """Return the fields of an event that say which tenant it is about."""
    return {"tenant": record.key, "id": record.id, "name": record.title}


def _eviction_of(record: TenantRecord) -> EvictionRecord:
    if record.eviction is None:
        raise CannotRestore(f"{record.title} is not evicted")
    return record.eviction


# --- evicted tenants whose memory the driver lists: it should be none ---

_SEEN_TIMES: Final = 2  # samples in a row: one may be older than the eviction


class OnCardWatch:
    """Looks at the samples of `state`; the truth thread's."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._seen: dict[str, int] = {}  # in how many samples in a row, by key

    def look(self) -> None:
        """Report evicted tenants with memory on a card, once each."""
        usage = self._state.observed.usage
        if usage.stale:
            return
        seen = {}
        for record in self._state.ledger.entries.values():
            if not record.is_off_card:
                continue
            used = sum(use.bytes or 0 for _, use in usage.processes.get(record.key, ()))
            if not used:
                continue
            seen[record.key] = self._seen.get(record.key, 0) + 1
            if seen[record.key] == _SEEN_TIMES:
                log("tenant-evicted-on-card", "error", **identity(record), used_bytes=used)
        self._seen = seen
