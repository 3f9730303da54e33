# SPDX-License-Identifier: Apache-2.0
"""`open`: what is reserved and made for a host process, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.core.loop import boottime
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.pages.process_watch import TenantSocket
from gpushare.daemon.placement.request import NoRoom, NoSuchCard
from gpushare.daemon.state import DaemonState, NoDriver
from gpushare.quota.errors import QuotaError

from . import fakes
from .fakes import GIB, MIB
from .operations import ME, entry_of, opened


def test_open_reserves_and_makes_the_pages(node: DaemonState) -> None:
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
    assert boottime() < entry.expires <= boottime() + node.config.timing.bind_timeout_seconds


def test_open_lists_the_mounts_in_order(node: DaemonState, tmp_path: Path) -> None:
    tenant = opened(node, memory="4GiB")
    rows = [(row["source"], row["destination"], row["read_only"]) for row in tenant["mounts"]]
    lib, directory = str(node.libraries), tenant["directory"]
    assert rows == [
        (f"{tmp_path}/libcuda.so.1", "/opt/gpushare/driver/libcuda.so.1", True),
        (f"{tmp_path}/libnvidia-ml.so.1", "/opt/gpushare/driver/libnvidia-ml.so.1", True),
        (f"{lib}/libcuda.so.1", "/opt/gpushare/lib/libcuda.so.1", True),
        (f"{lib}/libnvidia-ml.so.1", "/opt/gpushare/lib/libnvidia-ml.so.1", True),
        (directory, "/opt/gpushare/tenant", True),
        (f"{directory}/status", "/opt/gpushare/tenant/status", False),
    ]


def test_the_cards_of_others_are_not_among_the_command_s(tmp_path: Path) -> None:
    driver = fakes.FakeDriver(fakes.card(0), fakes.card(1), fakes.card(2))
    with fakes.node(tmp_path, driver) as node:
        both = {"memory": "4GiB", "devices": "2,1"}
        opened = open_tenant(ME, both, node)
        allocations = node.ledger.entries[opened["key"]].allocations
    visible = opened["env"]["CUDA_VISIBLE_DEVICES"].split(",")
    assert sorted(visible) == [fakes.card(1).uuid, fakes.card(2).uuid]
    assert visible == [allocation.uuid for allocation in allocations]


def test_a_whole_card_has_no_pages_and_no_mounts(node: DaemonState) -> None:
    tenant = opened(node, count="1")
    assert (tenant["mounts"], tenant["directory"], tenant["isolation"]) == ([], "", "exclusive")
    assert entry_of(node, tenant).allocations[0].memory_bytes == 140 * GIB


def test_a_rootless_tenant_gets_no_whole_card(node: DaemonState) -> None:
    with pytest.raises(
        QuotaError, match=r"^run: whole cards require root\. Use sudo, or add --memory 4GiB\."
    ):
        open_tenant(replace(ME, rootless=True), {"count": "1"}, node)
    assert not node.ledger.entries


def test_a_rootless_tenant_is_advice_and_its_pages_its_own(node: DaemonState) -> None:
    tenant = open_tenant(replace(ME, rootless=True), {"memory": "1GiB"}, node)
    assert tenant["isolation"] == "advisory"
    assert (Path(tenant["directory"]) / "status").stat().st_mode & 0o777 == 0o600


def test_two_tenants_of_one_name_can_be_distinguished(node: DaemonState) -> None:
    first, second = opened(node, memory="1GiB"), opened(node, memory="1GiB")
    names = {entry_of(node, tenant).name for tenant in (first, second)}
    assert len(names) == 2
    assert "train" in names


@pytest.mark.parametrize(
    ("quota", "error"),
    [
        ({}, "asks for no GPU"),
        ({"cores": "30"}, "requests cores without memory"),
        ({"memory": "4Q"}, "not a size"),
        ({"memory": "4GiB", "cores": "101"}, "not a share of a card in percent"),
        ({"memory": "4GiB", "backend": "mig"}, "no card of this node has one"),
        ({"memory": "4GiB", "backend": "mps"}, "not for gpushare run"),
        ({"memory": "4GiB", "oversubscribe": "host"}, "off on this node"),
        ({"memory": "4GiB", "memory-limit": "2GiB"}, "below memory 4GiB"),
        ({"memorry": "4GiB"}, "Did you mean"),
    ],
)
def test_a_bad_quota_reserves_nothing(node: DaemonState, quota: dict[str, str], error: str) -> None:
    with pytest.raises(QuotaError, match=re.escape(error)):
        open_tenant(ME, quota, node)
    assert not node.ledger.entries
    assert node.mounts.made() == []


def test_no_room_and_no_such_card_reserve_nothing(node: DaemonState) -> None:
    with pytest.raises(NoRoom, match="no card has room for 200 GiB"):
        opened(node, memory="200GiB")
    with pytest.raises(NoSuchCard, match="card 7 does not exist"):
        opened(node, memory="1GiB", devices="7")
    assert not node.ledger.entries


def test_a_quota_that_holds_no_context_is_refused_where_that_is_known(node: DaemonState) -> None:
    node.loaded().contexts.learn(fakes.card(0), "a", 500 * MIB)
    with pytest.raises(NoRoom, match="256 MiB is too small for a CUDA context: card 0 needs"):
        opened(node, memory="256MiB")


def test_a_missing_driver_is_reported_as_such(node: DaemonState) -> None:
    node.driver, node.no_driver_reason = None, "no driver: no CDI spec"
    with pytest.raises(NoDriver, match="no CDI spec; see gpushare doctor"):
        opened(node, memory="1GiB")


def test_pages_that_cannot_be_made_leave_no_reservation(
    node: DaemonState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.mounts, "make", full)
    with pytest.raises(OSError, match="No space left"):
        opened(node, memory="1GiB")
    assert not node.ledger.entries
    assert node.mounts.made() == []


def test_a_socket_that_cannot_be_made_leaves_nothing(
    node: DaemonState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(TenantSocket, "listen", fail)
    with pytest.raises(OSError, match="Too many open files"):
        opened(node, memory="1GiB")
    assert not node.ledger.entries
    assert not node.tenants.pages
    assert node.mounts.made() == []
