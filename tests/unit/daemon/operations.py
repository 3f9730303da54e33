# SPDX-License-Identifier: Apache-2.0
"""What tests ask of a node, as `gpushare run` does."""

from __future__ import annotations

import os
from pathlib import Path

from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.lifecycle.host_process import HostCommand, open_tenant
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.metrics import tenant_packets
from gpushare.protocol import HostProcessGrant, decode
from gpushare.protocol.rows import TenantRow

from .fake_process import FakeProcess
from .fakes import FakeDaemon

ME = HostCommand(name="train", uid=os.getuid(), rootless=False)


def opened(node: FakeDaemon, **quota: str) -> HostProcessGrant:
    asked = {key.strip("_").replace("_", "-"): value for key, value in quota.items()}
    return open_tenant(ME, asked, node, node.room)


def bound(node: FakeDaemon, program: FakeProcess, **quota: str) -> HostProcessGrant:
    """Open a tenant, and bind it to that process."""
    tenant = opened(node, **quota)
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    return tenant


def entry_of(node: FakeDaemon, tenant: HostProcessGrant) -> TenantRecord:
    return node.ledger.entries[tenant["key"]]


def grant(node: FakeDaemon, tenant: HostProcessGrant) -> Path:
    return node.mounts.path(tenant["key"]) / "grant"


def tenant_rows(node: FakeDaemon) -> list[TenantRow]:
    """Return the rows of tenants in the answer to `metrics`."""
    return [decode(packet)["row"]["tenant"] for packet in tenant_packets(node)]
