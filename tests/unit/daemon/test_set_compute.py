# SPDX-License-Identifier: Apache-2.0
"""`set` of compute: the rules of create, at once, and above every ceiling."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import abi
from gpushare.config import Config
from gpushare.daemon.compute import scheduler_sync
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.service.node_operations import set_card_policy
from gpushare.daemon.views.status_rows import tenant_row
from gpushare.protocol import HostProcessGrant
from gpushare.quota.effective_request import Defaults
from gpushare.quota.errors import QuotaError
from gpushare.quota.request_policy import RequestPolicy

from . import fakes
from .fakes import GIB, FakeDaemon
from .operations import entry_of, grant, opened


def set_of(node: FakeDaemon, tenant: HostProcessGrant, **asked: str) -> None:
    set_quota(entry_of(node, tenant), {key.rstrip("_"): text for key, text in asked.items()}, node)


def permille(node: FakeDaemon, tenant: HostProcessGrant) -> int:
    [allocation] = entry_of(node, tenant).allocations
    return scheduler_sync.shares_on_card(allocation.uuid, node)[tenant["key"]].permille


def reserved(node: FakeDaemon, tenant: HostProcessGrant) -> int:
    key = tenant["key"]
    [cores] = [
        one.cores for room in node.capacities() for one in room.allocations if one.key == key
    ]
    return cores


def test_cores_are_set_in_the_ledger_the_page_and_the_next_container(node: FakeDaemon) -> None:
    told: list[int] = []
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    node.shares_changed = lambda: told.append(permille(node, tenant))
    set_of(node, tenant, cores="40")
    entry = entry_of(node, tenant)
    assert [one.cores for one in entry.allocations] == [40]
    assert reserved(node, tenant) == 40
    assert (entry.policy, entry.quota["cores"]) == (
        "fixed-share",
        {"value": "40", "source": "operator"},
    )
    assert node.overrides.of(tenant["id"]) == {"cores": "40"}
    node.loop.settle()
    assert told == [400]
    offset = 4096 + abi.GRANT_CARD_CORES_PERCENT
    assert int.from_bytes(grant(node, tenant).read_bytes()[offset : offset + 4], "little") == 40


def test_any_of_them_together_with_memory(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB")
    said = {"policy": "native-burst-share", "weight": "7", "priority": "0", "class_": "online"}
    set_of(node, tenant, memory="6GiB", **said)
    entry = entry_of(node, tenant)
    assert entry.allocations[0].memory_bytes == 6 * GIB
    assert (entry.policy, entry.weight) == ("native-burst-share", 7)
    assert (entry.priority, entry.class_) == (0, "online")
    row = tenant_row(entry, node)
    assert (row["online"], row["priority"], row["weight"]) == (True, 0, 7)
    [card] = row["cards"]
    assert (card["policy"], card["share_percent"], card["is_capped"]) == (
        "native-burst-share",
        100.0,
        False,
    )


@pytest.mark.parametrize(
    ("default", "asked", "expected"),
    [
        (None, {}, "fixed-share"),
        ("burst-share", {}, "burst-share"),
        (None, {"cores": "30", "policy": "burst-share"}, "burst-share"),
    ],
)
def test_cores_keep_the_policy_requested_or_take_that_of_create(
    tmp_path: Path, default: str | None, asked: dict[str, str], expected: str
) -> None:
    config = Config(terms=RequestPolicy(Defaults(policy=default)))
    with fakes.node(tmp_path, config=config) as node:
        tenant = opened(node, memory="4GiB", **asked)
        set_of(node, tenant, cores="50")
        assert entry_of(node, tenant).policy == expected


def test_more_cores_than_the_card_has_left_are_refused_with_the_numbers(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    opened(node, memory="4GiB", cores="60", devices="0")
    with pytest.raises(NoRoom, match=r"no room for 41 % .*: card 0 has 40 % left \(train-.* 60\)"):
        set_of(node, tenant, cores="41")
    assert entry_of(node, tenant).allocations[0].cores == 30
    assert node.overrides.of(tenant["id"]) == {}
    set_of(node, tenant, cores="40")
    set_of(node, tenant, cores="41", policy="best-effort")


def test_nothing_of_a_set_is_done_where_a_part_of_it_is_refused(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    with pytest.raises(NoRoom):
        set_of(node, tenant, cores="40", memory="200GiB")
    before = entry_of(node, tenant)
    assert (before.allocations[0].cores, before.allocations[0].memory_bytes) == (30, 4 * GIB)


def test_every_card_of_a_tenant_has_to_have_them(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", cores="30", count="2")
    opened(node, memory="4GiB", cores="60", devices="1")
    with pytest.raises(NoRoom, match="card 1 has 40 % left"):
        set_of(node, tenant, cores="50")


def test_all_of_the_cores_are_a_whole_card_which_a_share_does_not_become(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", cores="30")
    with pytest.raises(QuotaError, match=r"--cores=100: a whole card.*Set 99 or less"):
        set_of(node, tenant, cores="100")


def test_a_cards_policy_holds_for_its_tenants_and_sets_their_cores_aside(node: FakeDaemon) -> None:
    burst = opened(node, memory="4GiB", cores="30", policy="native-burst-share", devices="0")
    plain = opened(node, memory="4GiB", devices="0")
    assert (permille(node, burst), permille(node, plain)) == (968, 32)
    told: list[str] = []
    node.shares_changed = lambda: told.append("told")
    set_card_policy("GPU-0000", "fixed-share", node)
    assert told == ["told"]
    assert (permille(node, burst), permille(node, plain)) == (300, 700)
    assert reserved(node, burst) == 30
    assert entry_of(node, burst).policy == "native-burst-share"
    assert [card["policy"] for card in tenant_row(entry_of(node, burst), node)["cards"]] == [
        "fixed-share"
    ]
    with pytest.raises(NoRoom, match="has 70 % of its compute left"):
        opened(node, memory="4GiB", cores="71", policy="native-burst-share", devices="0")
    set_card_policy("GPU-0000", "", node)
    assert reserved(node, burst) == 0
    assert permille(node, burst) == 968


def test_a_best_effort_card_reserves_no_cores(node: FakeDaemon) -> None:
    set_card_policy("GPU-0000", "best-effort", node)
    found = [opened(node, memory="4GiB", cores="90", devices="0") for _ in range(2)]
    assert [permille(node, one) for one in found] == [500, 500]
    with pytest.raises(NoRoom, match=r"cannot reserve 180 % of its compute.*train 90, train-"):
        set_card_policy("GPU-0000", "", node)
    assert node.policy_of("GPU-0000") == "best-effort"
    other = opened(node, memory="4GiB", cores="90", devices="1")
    assert permille(node, other) == 900


def test_a_daemon_that_ended_between_file_and_ledger_settles_it(tmp_path: Path) -> None:
    with fakes.node(tmp_path) as before:
        tenant = opened(before, memory="4GiB", cores="30")
        before.card_overrides.set("GPU-0000", {"policy": "best-effort"})
    with fakes.again(tmp_path) as after:
        assert reserved(after, tenant) == 0
        assert after.capacities()[0].cores_available == 100


@pytest.mark.parametrize("policy", ["fixed-share", "burst-share", "best-effort"])
def test_a_weight_that_nothing_comes_of_is_refused(node: FakeDaemon, policy: str) -> None:
    tenant = opened(node, memory="4GiB", cores="30", policy=policy)
    before = entry_of(node, tenant)
    with pytest.raises(QuotaError, match=rf"only under native-burst-share.* under {policy}. Add "):
        set_of(node, tenant, weight="3")
    assert entry_of(node, tenant) == before
    assert node.overrides.of(tenant["id"]) == {}
    set_of(node, tenant, weight="3", policy="native-burst-share")
    assert entry_of(node, tenant).weight == 3


def test_the_policy_of_a_container_takes_precedence_over_its_cards(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    opened(node, memory="4GiB", devices="0")
    set_card_policy("GPU-0000", "best-effort", node)
    assert permille(node, tenant) == 500
    set_of(node, tenant, policy="fixed-share")
    assert permille(node, tenant) == 300
    assert reserved(node, tenant) == 30
