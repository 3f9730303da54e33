# SPDX-License-Identifier: Apache-2.0
"""What is done about a container on a card in MPS mode that uses the card without its MPS server.

None of the server's limits hold for it, so it is treated as one that is over its quota:
`audit.over_quota` says how. It is acted on once for each process; an operator may resume it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gpushare.daemon.core.log import log
from gpushare.daemon.freezer.freezer import Freezer
from gpushare.daemon.state import DaemonState
from gpushare.errors import UserError

_ACTIONS: Final = frozenset({"freeze", "kill"})


class MpsBypass:
    """Acts on tenants that `state.mps` reports; any thread may call `act`."""

    def __init__(self, state: DaemonState, freezer: Freezer) -> None:
        self._state = state
        self._freezer = freezer

    def act(self, key: str, pid: int) -> None:
        """Freeze or kill a tenant, if that is the action for it; the caller has logged it."""
        record = self._state.ledger.entries.get(key)
        choice = "" if record is None else self._state.over_quota_action(record)
        if choice not in _ACTIONS:
            return
        why = f"process {pid} uses the card without its MPS server"

        def freeze() -> None:
            self._freezer.freeze(key, "audit", why)

        def kill() -> None:
            self._freezer.kill(key, why)

        self._state.freezing.submit(lambda: self._try(key, freeze if choice == "freeze" else kill))

    def _try(self, key: str, do: Callable[[], Any]) -> None:
        try:
            do()
        except (UserError, OSError) as error:
            log("over-quota-action-failed", "error", tenant=key, step="freeze", error=str(error))
