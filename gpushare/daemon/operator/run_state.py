# SPDX-License-Identifier: Apache-2.0
"""An operator, or `idle.action`, pauses or stops a tenant; an operator resumes it.

Stopping goes through no engine: an engine's restart policy may start the container again.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from typing import Final

from gpushare.daemon.audit.audit import Audit
from gpushare.daemon.core.log import log
from gpushare.daemon.freezer import CannotFreeze, Freezer
from gpushare.daemon.identity import processes
from gpushare.daemon.mps.supervisor import MpsSupervisor
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import By, TenantRecord
from gpushare.errors import UserError
from gpushare.settings import MPS

_FREEZERS: Final[tuple[By, ...]] = ("operator", "idle", "audit")
_TERMINATE_SECONDS: Final = 3  # for an MPS server to end the work of a client


class RunControl:
    """Pauses, resumes and stops tenants; the freeze thread's. It overrules the audit."""

    def __init__(
        self, state: DaemonState, freezer: Freezer, audit: Audit, servers: MpsSupervisor
    ) -> None:
        self._state, self._freezer = state, freezer
        self._audit, self._servers = audit, servers

    def pause(self, record: TenantRecord, why: str, by: By = "operator") -> None:
        """Freeze a tenant, through restarts of the daemon, until `resume`; CannotFreeze."""
        if self._state.ledger.freezes.by(record.key, "stop"):
            raise CannotFreeze(f"{record.title} is being stopped and cannot be paused")
        self._freezer.freeze(record.key, by, why)

    def resume(self, record: TenantRecord) -> None:
        """Let a tenant run, also if the audit froze it; CannotFreeze if it is not frozen.

        The audit treats it as a tenant that has just started.
        """
        if not self._release(record.key, "operator") and not self._freezer.thaw(record):
            raise CannotFreeze(
                f"{record.title} is neither paused nor frozen by gpushare; if its engine paused "
                "it, resume it there: docker unpause, podman unpause"
            )

    def stop(
        self,
        record: TenantRecord,
        why: str,
        number: signal.Signals,
        seconds: int,
        by: By = "operator",
    ) -> None:
        """Stop a tenant, also a frozen one; CannotFreeze: nothing was done.

        Its first process gets `number`, and has `seconds` to exit.

        The kill is recorded as well: a daemon that is killed meanwhile does it at its next start.
        """
        after = 0 if number == signal.SIGKILL else seconds
        why = why or "stopped by an operator"
        is_client = record.isolation == MPS
        if is_client:  # its server is told first, if it answers in time
            self._freezer.promise_kill(record.key, why, after + _TERMINATE_SECONDS)
            self._kill_client(record, why, after)
        elif after:
            self._freezer.promise_kill(record.key, why, after)
        else:
            self._freezer.kill(record.key, why)
        how = {"by": by, "signal": number.name, "timeout": after}
        log("tenant-stop-requested", "warning", **record.identity, **how, reason=why)
        if after:
            try:
                # Before the thaw: the process runs with the signal or not at all, and one that
                # was sent while it was frozen is the same one.
                _send_signal(record, number)
            finally:
                self._release(record.key, by)
            self._enforce_after(after)

    def _kill_client(self, record: TenantRecord, why: str, after: int) -> None:
        """Kill a client of an MPS server after `after` seconds, once its server has ended its work.

        The promise of the kill holds if the server does not answer.
        """
        submit, servers = self._state.freezing.submit, self._servers

        def kill() -> None:
            with suppress(UserError):  # it has ended, or is killed as promised
                self._freezer.kill(record.key, why)

        self._state.loop.after(after, lambda: servers.terminate(record.key, lambda: submit(kill)))
        self._enforce_after(after + _TERMINATE_SECONDS)

    def _enforce_after(self, seconds: float) -> None:
        enforce = partial(self._state.freezing.submit, self._freezer.enforce)
        self._state.loop.after(seconds, enforce)

    def _release(self, key: str, who: By) -> bool:
        """Take back for `who` what froze a tenant, and tell those that decided it; False: none."""
        released = [by for by in _FREEZERS if self._freezer.release(key, by, who)]
        if "audit" in released:
            self._audit.resumed(key)
        return bool(released)


def _send_signal(record: TenantRecord, number: signal.Signals) -> None:
    """Send the first process `number`; where it has ended, those that it left have the timeout."""
    pidfd = processes.open_pidfd(record.pid, record.starttime)
    if pidfd is None:
        return
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise CannotFreeze(
            f"{record.title} cannot be sent {number.name} ({error.strerror}); it is killed after "
            "its timeout"
        ) from error
    finally:
        os.close(pidfd)
