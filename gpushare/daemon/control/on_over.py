# SPDX-License-Identifier: Apache-2.0
"""How far the audit goes with one container, by the operator's word: it lasts as its quota does."""

from __future__ import annotations

from typing import Final

from gpushare.daemon.control.resize import NotResizable
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry
from gpushare.quota import Source
from gpushare.quota.keys import OPERATORS, read

KEY: Final = "on-over"


def set_on_over(entry: Entry, text: str, node: Node) -> None:
    """Have the audit go as far as `text` with `entry`; QuotaError, NotResizable: as it was."""
    asked = read(KEY, Source("operator", f"--{KEY}"), text, OPERATORS)
    if not entry.shared:
        raise NotResizable(f"{entry.title} has no share of a card: nothing of it is judged")
    node.overrides.set(entry.id, {KEY: str(asked.value)})
    log("tenant-resized", tenant=entry.key, name=entry.title, **{KEY: str(asked.value)})
