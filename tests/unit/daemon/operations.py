# SPDX-License-Identifier: Apache-2.0
"""What tests ask of a node, as `gpushare run` does."""

from __future__ import annotations

import os
from pathlib import Path

from gpushare.daemon.life.host import Command, open_tenant
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry
from gpushare.protocol import Opened

ME = Command(name="train", uid=os.getuid(), rootless=False)


def opened(node: Node, **quota: str) -> Opened:
    asked = {key.replace("_", "-"): value for key, value in quota.items()}
    return open_tenant(ME, asked, node)


def entry_of(node: Node, tenant: Opened) -> Entry:
    return node.ledger.entries[tenant["key"]]


def grant(node: Node, tenant: Opened) -> Path:
    return node.mounts.path(tenant["key"]) / "grant"
