# SPDX-License-Identifier: Apache-2.0
"""The answers of gpushared: asked at most once a second, however many pages are open."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpushare.client import Client
from gpushare.dashboard.problems import mode_of, problems, waiting
from gpushare.errors import UserError

if TYPE_CHECKING:
    from gpushare.protocol import DaemonStatus
    from gpushare.protocol.queue import QueueEntry
    from gpushare.protocol.rows import CardRow, TenantStatus

_KEPT_SECONDS: Final = 1.0
_REPLY_SECONDS: Final = 5.0
_START_SECONDS: Final = 1.0  # a page shows that gpushared starts, and asks again


class LiveNode:
    """The cards and containers of the gpushared at `path`."""

    def __init__(self, path: Path) -> None:
        self.client = Client(path, _REPLY_SECONDS, start_seconds=_START_SECONDS)
        self._lock = threading.Lock()
        self._read = -_KEPT_SECONDS
        self._answer: dict[str, Any] = {}

    def now(self) -> dict[str, Any]:
        """Return the rows of `gpushare ls` and `ps`, with problems first; `error`: no answer."""
        with self._lock:
            if time.monotonic() - self._read >= _KEPT_SECONDS:
                self._answer = self._ask()
                self._read = time.monotonic()
            return self._answer

    def _ask(self) -> dict[str, Any]:
        try:
            status = self.client.status()
            cards, tenants = self.client.cards(), self.client.tenants()
            queue = self.client.queue()
        except UserError as error:
            return {**_answer(None, [], [], []), "error": str(error)}
        return _answer(status, cards, tenants, queue)


def _answer(
    status: DaemonStatus | None,
    cards: list[CardRow],
    tenants: list[TenantStatus],
    queue: list[QueueEntry],
) -> dict[str, Any]:
    modes = {card["uuid"]: mode_of(mode=card["mode"], uuid=card["uuid"]) for card in cards}
    return {
        "time": time.time(),
        "error": "",
        "node": status,
        "cards": [{**card, "sharing": modes[card["uuid"]]} for card in cards],
        "tenants": [{**tenant, "sharing": _sharing(tenant)} for tenant in tenants],
        "problems": problems(cards, tenants, status["warnings"] if status else []),
        "queue": queue,
        "waiting": waiting(tenants, queue),
    }


def _sharing(tenant: TenantStatus) -> str:
    uuid = tenant["cards"][0]["uuid"] if tenant["cards"] else ""
    return mode_of(mode="shared", isolation=tenant["isolation"], uuid=uuid)
