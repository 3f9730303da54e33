# SPDX-License-Identifier: Apache-2.0
"""Options of a dashboard on a free port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpushare.dashboard.server import DashboardOptions
from gpushare.listen_address import Address

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK = Address(host="127.0.0.1", port=0)


def options_of(socket: Path, history: Path, **more: Any) -> DashboardOptions:
    return DashboardOptions(**{"listen": LOOPBACK, "socket": socket, "history": history, **more})
