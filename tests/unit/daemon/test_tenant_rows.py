# SPDX-License-Identifier: Apache-2.0
"""An answer with the rows of all tenants looks up once what they have in common."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare.daemon.compute import scheduler_sync
from gpushare.daemon.identity.processes import Cgroups, find_process
from gpushare.daemon.service.control_request import ControlRequest, Peer
from gpushare.daemon.views.status_rows import tenant_row

from . import fakes
from .fake_process import FakeProcess
from .fakes import FakeDaemon


def test_the_mounts_and_the_shares_are_read_once(
    node: FakeDaemon, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = find_process(program.pid)
    assert process is not None
    for number in range(6):
        made = fakes.entry(f"{number}" * 16, index=number % 2)
        running = replace(made, state="bound", pid=process.pid, starttime=process.starttime)
        node.ledger.add(running)
    alone = [dict(tenant_row(record, node)) for record in node.ledger.entries.values()]
    assert all(row["cards"] for row in alone)
    looked: list[object] = []
    mounted, shares = Cgroups.mounted, scheduler_sync.shares_on_card

    def counted_mounts() -> Cgroups:
        looked.append("mounts")
        return mounted()

    def counted_shares(uuid: str, state: FakeDaemon) -> object:
        looked.append(uuid)
        return shares(uuid, state)

    monkeypatch.setattr(Cgroups, "mounted", staticmethod(counted_mounts))
    monkeypatch.setattr(scheduler_sync, "shares_on_card", counted_shares)
    request = ControlRequest({"op": "tenants"}, Peer(1, 0))
    rows, _ = node.operations["tenants"].run(request, node)
    assert list(rows) == alone
    assert sorted(map(str, looked)) == [fakes.card(0).uuid, fakes.card(1).uuid, "mounts"]
