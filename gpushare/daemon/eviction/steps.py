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
        self.record(record, eviction)
        self._gate(record, closed=True)
        time.sleep(GRACE_SECONDS)
        try:  # no new one can begin by now
            living = driver_processes(record, cgroups, self._state)
        except CannotEvict:
            self._open(record)
            raise
        if living != eviction.processes:
            eviction = replace(eviction, processes=living)
            self.record(record, eviction)
        try:
            self._lock(record, eviction, lock_seconds)
        except CheckpointError as error:
            self._put_back(record, eviction, f"it could not be locked ({error})", NotLocked)
        why = why_not_claimed(record, self._state, forced=forced)
        if why:
            self._put_back(record, eviction, why)
        try:
            self._checkpoint(eviction)
        except CheckpointError as error:
            self._put_back(record, eviction, str(error))
        return self.record_evicted(record, eviction)

    def restore(self, record: TenantRecord) -> TenantRecord:
        """Restore a tenant to its allocations, as far as it is not; EvictionFailed, TenantEnded.

        The record is of state "restoring" or "evicting": the room is reserved.
        """
        eviction = record.eviction
        assert eviction is not None
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
        eviction = record.eviction
        assert eviction is not None
        living = self._living(eviction)
        states = [self._client.state(process.pid) for process in living]
        if FAILED in states:
            number = living[states.index(FAILED)].pid
            self._record_failed(record, eviction, f"process {number} is in state failed")
        elif all(state == CHECKPOINTED for state in states):
            if eviction.state != "evicted":
                self.record_evicted(record, eviction)
        elif eviction.state == "evicted":
            # Another program has restored it: its memory counts, room or not.
            log("tenant-eviction-bypassed", "error", **record.identity)
            self._finish(record, eviction)
        else:
            # The room is reserved in both states: what is in host memory comes back.
            self.restore(record)

    def _restore_process(
        self,
        process: EvictedProcess,
        eviction: EvictionRecord,
        pairs: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Restore a process, unless it has ended; CheckpointError."""
        try:
            with _while_it_lives(process):
                self._client.restore(process.pid, eviction.bytes, pairs)
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

    def _lock(self, record: TenantRecord, eviction: EvictionRecord, seconds: float) -> None:
        living = self._living(eviction)
        if not living:
            raise TenantEnded(f"{record.title} has ended")
        errors = self._client.lock([process.pid for process in living], seconds)
        for process, error in zip(living, errors, strict=True):
            if error is not None and is_same(process):
                raise error

    def _checkpoint(self, eviction: EvictionRecord) -> None:
        for process in self._living(eviction):
            with _while_it_lives(process):
                self._client.checkpoint(process.pid, eviction.bytes)

    def _put_back(
        self,
        record: TenantRecord,
        eviction: EvictionRecord,
        why: str,
        kind: type[EvictionFailed] = EvictionFailed,
    ) -> None:
        """Have a tenant go on whose eviction failed; always raises EvictionFailed."""
        text = f"{record.title} could not be evicted: {why}"
        try:
            self._release_all(eviction)
        except CheckpointError as error:
            self._give_up(record, eviction, f"{why}; then {error}", error)
            raise EvictionFailed(f"{text}, nor could it be put back: {error}") from error
        self._open(record)
        log("tenant-eviction-failed", "warning", **record.identity, error=why)
        raise kind(f"{text}. It goes on as before")

    def _release_all(self, eviction: EvictionRecord) -> None:
        """Restore what is in host memory, and unlock all; CheckpointError where that is not so."""
        for process in self._living(eviction):
            state = self._client.state(process.pid)
            if state == FAILED:
                raise CheckpointError(f"process {process.pid} is in state failed", is_final=True)
            if state == CHECKPOINTED:
                self._restore_process(process, eviction)
        self._unlock_all(eviction)

    def _unlock_all(self, eviction: EvictionRecord) -> None:
        for process in self._living(eviction):
            if self._client.state(process.pid) == LOCKED:
                with _while_it_lives(process):
                    self._client.unlock(process.pid)

    def _back_to_evicted(
        self, record: TenantRecord, eviction: EvictionRecord, error: CheckpointError
    ) -> None:
        """Have all of a tenant evicted again whose restore failed; always raises EvictionFailed."""
        why = str(error)
        try:
            self._checkpoint_again(eviction, error)
        except CheckpointError as again:
            if again is not error:
                why = f"{why}; then {again}"
            self._give_up(record, eviction, why, again)
            fix = "gpushared will ask the driver again"
            if again.is_final:
                fix = f"Its memory is lost to it; stop it with gpushare stop {record.title}"
            raise EvictionFailed(f"{record.title} cannot be restored: {why}. {fix}") from error
        self.record_evicted(record, eviction)
        log("tenant-restore-failed", "warning", **record.identity, error=why)
        raise EvictionFailed(f"{record.title} could not be restored: {why}. It stays evicted")

    def _checkpoint_again(self, eviction: EvictionRecord, error: CheckpointError) -> None:
        """Evict again what was restored before `error`; raise it if nothing can be restored."""
        living = self._living(eviction)
        states = [self._client.state(process.pid) for process in living]
        error.is_final = error.is_final or FAILED in states
        if error.is_final:
            raise error
        for process, state in zip(living, states, strict=True):
            if state == LOCKED:
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

    def _give_up(
        self, record: TenantRecord, eviction: EvictionRecord, why: str, error: CheckpointError
    ) -> None:
        """Record that a tenant is lost; one of which nothing is known is left to `settle`."""
        if error.is_final:
            self._record_failed(record, eviction, why)
        else:
            log("eviction-unsettled", "error", **record.identity, error=why)

    def _record_failed(self, record: TenantRecord, eviction: EvictionRecord, why: str) -> None:
        failed = replace(eviction, state="failed", since=time.time(), error=why)
        self.record(record, failed)
        log("tenant-eviction-lost", "error", **record.identity, error=why)

    def _living(self, eviction: EvictionRecord) -> list[EvictedProcess]:
        return [process for process in eviction.processes if is_same(process)]

    def _gate(self, record: TenantRecord, *, closed: bool) -> None:
        pages = self._state.tenants.pages.get(record.key)
        if pages is not None:
            pages.grant.set_evicted(evicted=closed)

    def record_evicted(
        self, record: TenantRecord, eviction: EvictionRecord | None = None
    ) -> TenantRecord:
        """Record that the tenant's memory is in host memory, by `eviction` or the record's own."""
        eviction = eviction or record.eviction
        assert eviction is not None
        return self.record(record, replace(eviction, state="evicted", since=time.time()))

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
