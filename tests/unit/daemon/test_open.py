# SPDX-License-Identifier: Apache-2.0
"""`open`: what is reserved and made for a host process, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.core.loop import boottime
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.node import NoDriver
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import TenantSocket
from gpushare.daemon.placement.request import NoRoom, NoSuchCard
from gpushare.quota.errors import QuotaError

from .fakes import FakeDaemon
from .operations import ME, entry_of, opened


def test_open_reserves_and_makes_the_pages(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", cores="30")
    entry = entry_of(node, tenant)
    assert (entry.state, entry.engine, entry.name) == ("reserved", "host", "train")
    assert (entry.policy, entry.isolation) == ("fixed-share", "interposer")
    assert entry.quota == {
        "memory": {"value": "4GiB", "source": "option"},
        "cores": {"value": "30", "source": "option"},
    }
    assert re.fullmatch(r"host-[0-9a-f]{8}", tenant["id"])
    directory = Path(tenant["directory"])
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["grant", "socket", "status", "wakeup"]
    assert boottime() < entry.expires <= boottime() + node.node.config.timing.bind_timeout_seconds


@pytest.mark.parametrize(("owner", "name"), [(TenantMounts, "make"), (TenantSocket, "listen")])
def test_pages_or_a_socket_that_cannot_be_made_leave_nothing(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(OSError, match="No space left"):
        opened(node, memory="1GiB")
    assert not node.ledger.entries
    assert not node.tenants.pages
    assert node.mounts.made() == []


def test_a_rootless_tenant_gets_no_whole_card(node: FakeDaemon) -> None:
    with pytest.raises(
        QuotaError, match=r"^run: whole cards require root\. Use sudo, or add --memory 4GiB\."
    ):
        open_tenant(replace(ME, rootless=True), {"count": "1"}, node, node.room)
    assert not node.ledger.entries


def test_no_room_and_no_such_card_reserve_nothing(node: FakeDaemon) -> None:
    with pytest.raises(NoRoom, match="no card has room for 200 GiB"):
        opened(node, memory="200GiB")
    with pytest.raises(NoSuchCard, match="card 7 does not exist"):
        opened(node, memory="1GiB", devices="7")
    assert not node.ledger.entries


def test_a_missing_driver_is_reported_as_such(node: FakeDaemon) -> None:
    node.node.driver, node.node.no_driver_reason = None, "no driver: no CDI spec"
    with pytest.raises(NoDriver, match="no CDI spec; see gpushare doctor"):
        opened(node, memory="1GiB")


def test_open_lists_the_mounts_in_order(node: FakeDaemon, tmp_path: Path) -> None:
    tenant = opened(node, memory="4GiB")
    rows = [(row["source"], row["destination"], row["read_only"]) for row in tenant["mounts"]]
    lib, directory = str(node.node.libraries), tenant["directory"]
    assert rows == [
        (f"{tmp_path}/libcuda.so.1", "/opt/gpushare/driver/libcuda.so.1", True),
        (f"{tmp_path}/libnvidia-ml.so.1", "/opt/gpushare/driver/libnvidia-ml.so.1", True),
        (f"{lib}/libcuda.so.1", "/opt/gpushare/lib/libcuda.so.1", True),
        (f"{lib}/libnvidia-ml.so.1", "/opt/gpushare/lib/libnvidia-ml.so.1", True),
        (directory, "/opt/gpushare/tenant", True),
        (f"{directory}/status", "/opt/gpushare/tenant/status", False),
    ]
