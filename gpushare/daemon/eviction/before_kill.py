# SPDX-License-Identifier: Apache-2.0
"""Takes a restored tenant off its cards before gpushared kills it, where the driver needs that.

Killing a live restored process has hung the host with driver 595 (NVIDIA/cuda-checkpoint issue 53):
it is locked and checkpointed first. What cannot be evicted, for example because it is frozen, is
killed as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.eviction.checkpoint_client import KILL_HANGS, major_version
from gpushare.daemon.eviction.evictions import Evictions
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError

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
    if not record.is_restored or record.eviction is not None or state.driver is None:
        return False
    return major_version(state.driver.nvml.driver_version) == KILL_HANGS


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
