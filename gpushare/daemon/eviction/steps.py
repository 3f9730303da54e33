# SPDX-License-Identifier: Apache-2.0
"""The steps of an eviction and of a restore: all processes of a tenant, or none. One thread's.

    evict    record evicting > close the gate > lock all > ask again > checkpoint each > record
    restore  record restoring, with its room > restore each > unlock all > open the gate > record

The gate is the word `evicted` of the grant page: a call of the driver that finds it set asks for
the restore and waits, so that none blocks in the driver, where nothing would see it. What a step
has led to where it failed, or where gpushared was killed, the driver says (`settle`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.eviction.checkpoint_client import (
    LOCK_SECONDS,
    CheckpointClient,
    CheckpointError,
)
from gpushare.daemon.eviction.preconditions import (
    CannotEvict,
    driver_processes,
    origin,
    why_not_claimed,
)
from gpushare.daemon.eviction.worker_main import (
    CHECKPOINTED,
    FAILED,
    ILLEGAL_STATE,
    LOCKED,
    RUNNING,
)
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import EvictedProcess, EvictionRecord, TenantRecord
from gpushare.errors import UserError

#: For threads that have passed the gate and not reached the driver yet.
GRACE_SECONDS: Final = 0.0005
#: After these a restore fails for ever, in the state CHECKPOINTED (NVIDIA/cuda-checkpoint issue
#: 44): OUT_OF_MEMORY, OPERATING_SYSTEM.
_LOST: Final = frozenset({2, 304})


class EvictionFailed(UserError):
    """The driver could not do it; the text says what was put back, and what could not be."""


class NotLocked(EvictionFailed):
    """Its work did not end in time: it goes on."""


class TenantEnded(UserError):
    """The tenant has ended meanwhile."""


class EvictionSteps:
    """Has the steps done by `client`, and records each in the ledger of `state`."""

    def __init__(self, state: DaemonState, client: CheckpointClient) -> None:
        self._state = state
        self._client = client

    def evict(
        self,
        record: TenantRecord,
        eviction: EvictionRecord,
        cgroups: Cgroups,
        lock_seconds: float = LOCK_SECONDS,
        *,
        forced: bool = False,
    ) -> TenantRecord:
        """Evict a tenant whose eviction is possible; CannotEvict, EvictionFailed, TenantEnded.

        One that is `forced` is not asked what it claims.
        """
        record = self.record(record, eviction)
        self._gate(record, closed=True)
        time.sleep(GRACE_SECONDS)
        try:  # no new one can begin by now
            living = driver_processes(record, cgroups, self._state)
        except CannotEvict:
            self._open(record)
            raise
        if living != eviction.processes:
            record = self.record(record, replace(eviction, processes=living))
        try:
            self._lock(record, lock_seconds)
        except CheckpointError as error:
            self._put_back(record, f"it could not be locked ({error})", NotLocked)
        why = why_not_claimed(record, self._state, forced=forced)
        if why:
            self._put_back(record, why)
        try:
            for process in _living(record):
                with _while_it_lives(process):
                    self._client.checkpoint(process.pid, eviction.bytes)
        except CheckpointError as error:
            self._put_back(record, str(error))
        return self.record_evicted(record)

    def restore(self, record: TenantRecord) -> TenantRecord:
        """Restore a tenant to its allocations, as far as it is not; EvictionFailed, TenantEnded.

        The record is of state "restoring" or "evicting": the room is reserved.
        """
        pairs = self._pairs(record)
        try:
            for process in _living(record):
                self._restore_process(process, record, pairs)
        except CheckpointError as error:
            self._back_to_evicted(record, error)
        return self._finish(record)

    def settle(self, record: TenantRecord) -> None:
        """Find out from the driver how far an eviction got, and go on from there.

        After a restart, and where a worker was killed in the middle. CheckpointError: not known.
        """
        living, before = _living(record), _eviction_of(record).state
        states = [self._client.state(process.pid) for process in living]
        if FAILED in states:
            number = living[states.index(FAILED)].pid
            self._record_failed(record, f"process {number} is in state failed")
        elif all(state == CHECKPOINTED for state in states):
            if before != "evicted":
                self.record_evicted(record)
        elif before == "evicted":
            # Another program has restored it: its memory counts, room or not.
            log("tenant-eviction-bypassed", "error", **record.identity)
            self._finish(record)
        else:
            # The room is reserved in both states: what is in host memory comes back.
            self.restore(record)

    def _restore_process(
        self, process: EvictedProcess, record: TenantRecord, pairs: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Restore a process, unless it has ended; CheckpointError."""
        try:
            with _while_it_lives(process):
                self._client.restore(process.pid, _eviction_of(record).bytes, pairs)
        except CheckpointError as error:
            # The driver completes a call whose worker was killed, for example together with
            # gpushared, and then refuses it.
            is_done = error.code == ILLEGAL_STATE and self._client.state(process.pid) in {
                LOCKED,
                RUNNING,
            }
            if not is_done:
                error.is_final = error.code in _LOST
                raise

    def _pairs(self, record: TenantRecord) -> list[tuple[str, str]]:
        """Return each card that the memory came from with the one that it goes to; none: the same.

        If one is another, all have to be named (cuda.h).
        """
        pairs = [
            (origin(record, number), part.uuid) for number, part in enumerate(record.allocations)
        ]
        return pairs if any(before != after for before, after in pairs) else []

    def _lock(self, record: TenantRecord, seconds: float) -> None:
        living = _living(record)
        if not living:
            raise TenantEnded(f"{record.title} has ended")
        errors = self._client.lock([process.pid for process in living], seconds)
        for process, error in zip(living, errors, strict=True):
            if error is not None and is_same(process):
                raise error

    def _put_back(
        self, record: TenantRecord, why: str, kind: type[EvictionFailed] = EvictionFailed
    ) -> None:
        """Have a tenant go on whose eviction failed; always raises EvictionFailed."""
        text = f"{record.title} could not be evicted: {why}"
        try:
            self._release_all(record)
        except CheckpointError as error:
            self._give_up(record, f"{why}; then {error}", error)
            raise EvictionFailed(f"{text}, nor could it be put back: {error}") from error
        self._open(record)
        log("tenant-eviction-failed", "warning", **record.identity, error=why)
        raise kind(f"{text}. It goes on as before")

    def _release_all(self, record: TenantRecord) -> None:
        """Restore what is in host memory, and unlock all; CheckpointError where that is not so."""
        for process in _living(record):
            state = self._client.state(process.pid)
            if state == FAILED:
                raise CheckpointError(f"process {process.pid} is in state failed", is_final=True)
            if state == CHECKPOINTED:
                self._restore_process(process, record)
        self._unlock_all(record)

    def _unlock_all(self, record: TenantRecord) -> None:
        for process in _living(record):
            if self._client.state(process.pid) == LOCKED:
                with _while_it_lives(process):
                    self._client.unlock(process.pid)

    def _back_to_evicted(self, record: TenantRecord, error: CheckpointError) -> None:
        """Have all of a tenant evicted again whose restore failed; always raises EvictionFailed."""
        why = str(error)
        try:
            self._checkpoint_again(record, error)
        except CheckpointError as again:
            if again is not error:
                why = f"{why}; then {again}"
            self._give_up(record, why, again)
            fix = "gpushared will ask the driver again"
            if again.is_final:
                fix = f"Its memory is lost to it; stop it with gpushare stop {record.title}"
            raise EvictionFailed(f"{record.title} cannot be restored: {why}. {fix}") from error
        self.record_evicted(record)
        log("tenant-restore-failed", "warning", **record.identity, error=why)
        raise EvictionFailed(f"{record.title} could not be restored: {why}. It stays evicted")

    def _checkpoint_again(self, record: TenantRecord, error: CheckpointError) -> None:
        """Evict again what was restored before `error`; raise it if nothing can be restored."""
        living = _living(record)
        states = [self._client.state(process.pid) for process in living]
        error.is_final = error.is_final or FAILED in states
        if error.is_final:
            raise error
        for process, state in zip(living, states, strict=True):
            if state == LOCKED:
                self._client.checkpoint(process.pid, _eviction_of(record).bytes)

    def _finish(self, record: TenantRecord) -> TenantRecord:
        """Let a tenant go on whose memory is on its cards."""
        try:
            self._unlock_all(record)
        except CheckpointError as error:
            self._give_up(record, str(error), error)
            raise EvictionFailed(f"{record.title} could not be unlocked: {error}") from error
        return self._open(record)

    def _open(self, record: TenantRecord) -> TenantRecord:
        """Record that a tenant is evicted no more, and let its calls pass."""
        opened = self.record(record, None)
        self._gate(record, closed=False)
        return opened

    def _give_up(self, record: TenantRecord, why: str, error: CheckpointError) -> None:
        """Record that a tenant is lost; one of which nothing is known is left to `settle`."""
        if error.is_final:
            self._record_failed(record, why)
        else:
            log("eviction-unsettled", "error", **record.identity, error=why)

    def _record_failed(self, record: TenantRecord, why: str) -> None:
        failed = replace(_eviction_of(record), state="failed", since=time.time(), error=why)
        self.record(record, failed)
        log("tenant-eviction-lost", "error", **record.identity, error=why)

    def _gate(self, record: TenantRecord, *, closed: bool) -> None:
        pages = self._state.tenants.pages.get(record.key)
        if pages is not None:
            pages.grant.set_evicted(evicted=closed)

    def record_evicted(self, record: TenantRecord) -> TenantRecord:
        """Record that the tenant's memory is in host memory."""
        return self.record(
            record, replace(_eviction_of(record), state="evicted", since=time.time())
        )

    def record(self, record: TenantRecord, eviction: EvictionRecord | None) -> TenantRecord:
        """Record it, unless the tenant has ended meanwhile: TenantEnded."""
        state = self._state

        def write() -> TenantRecord:
            now = state.ledger.entries.get(record.key)
            if now is None or (now.pid, now.starttime) != (record.pid, record.starttime):
                raise TenantEnded(f"{record.title} has ended")
            written = state.ledger.evict(record.key, eviction)
            if eviction is not None and eviction.state == "evicted":
                # It has no more than its quota when it is restored.
                for number, allocation in enumerate(written.allocations):
                    if allocation.burst_limit_bytes > allocation.quota_bytes:
                        state.limits.change(written, number, allocation.quota_bytes)
            return written

        return state.decide.run(write)


def _eviction_of(record: TenantRecord) -> EvictionRecord:
    assert record.eviction is not None
    return record.eviction


def _living(record: TenantRecord) -> list[EvictedProcess]:
    return [process for process in _eviction_of(record).processes if is_same(process)]


def is_same(process: EvictedProcess) -> bool:
    """Whether a process has not ended."""
    return processes.start_time(process.pid) == process.starttime


@contextlib.contextmanager
def _while_it_lives(process: EvictedProcess) -> Iterator[None]:
    """Let a call of the driver fail in the block if the process has ended meanwhile."""
    try:
        yield
    except CheckpointError:
        if is_same(process):
            raise
