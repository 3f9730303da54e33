# SPDX-License-Identifier: Apache-2.0
"""`set` of compute: the rules of create, at once, and above every ceiling."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import abi
from gpushare.config import Config
from gpushare.daemon.compute import shares
from gpushare.daemon.control.resize import NotResizable, set_quota
from gpushare.daemon.life import release
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import NoRoom
from gpushare.daemon.views.rows import tenant_row
from gpushare.protocol import Opened
from gpushare.quota import Ceilings, Defaults, QuotaError, Terms, Together

from . import fakes
from .fakes import GIB, FakeDriver
from .operations import entry_of, grant, opened


def set_of(node: Node, tenant: Opened, **asked: str) -> None:
    set_quota(entry_of(node, tenant), {key.rstrip("_"): text for key, text in asked.items()}, node)


def permille(node: Node, tenant: Opened) -> int:
    [share] = shares.of_tenant(entry_of(node, tenant), node)
    return share.permille


def test_cores_are_set_in_the_ledger_the_page_and_what_comes_next(node: Node) -> None:
    told: list[int] = []
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    node.shares_changed = lambda: told.append(permille(node, tenant))
    set_of(node, tenant, cores="40")
    entry = entry_of(node, tenant)
    assert [(one.cores, one.reserved_cores) for one in entry.holdings] == [(40, 40)]
    assert (entry.policy, entry.quota["cores"]) == ("fixed-share", "40 operator")
    assert node.overrides.of(tenant["id"]) == {"cores": "40"}
    assert told == [400]
    offset = 4096 + abi.GRANT_CARD_CORES_PERCENT
    assert int.from_bytes(grant(node, tenant).read_bytes()[offset : offset + 4], "little") == 40


def test_any_of_them_together_with_memory(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    said = {"policy": "native-burst-share", "weight": "7", "priority": "0", "class_": "online"}
    set_of(node, tenant, memory="6GiB", **said)
    entry = entry_of(node, tenant)
    assert entry.holdings[0].memory_bytes == 6 * GIB
    assert (entry.policy, entry.weight) == ("native-burst-share", 7)
    assert (entry.priority, entry.class_) == (0, "online")
    row = tenant_row(entry, node)
    assert (row["online"], row["priority"], row["weight"]) == (True, 0, 7)
    [card] = row["cards"]
    assert (card["policy"], card["share"], card["capped"]) == ("native-burst-share", 100.0, False)


def test_cores_for_who_had_none_make_it_fixed_share_as_at_create(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    assert entry_of(node, tenant).policy == "best-effort"
    set_of(node, tenant, cores="30")
    assert entry_of(node, tenant).policy == "fixed-share"


def test_or_what_the_nodes_defaults_say(tmp_path: Path) -> None:
    config = Config(terms=Terms(Defaults(policy="burst-share")))
    with fakes.node(tmp_path, config=config) as node:
        tenant = opened(node, memory="4GiB")
        set_of(node, tenant, cores="30")
        assert entry_of(node, tenant).policy == "burst-share"
        assert entry_of(node, tenant).quota["policy"] == "burst-share default"


def test_a_policy_that_was_asked_stays_when_cores_change(node: Node) -> None:
    tenant = opened(node, memory="4GiB", cores="30", policy="burst-share")
    set_of(node, tenant, cores="50")
    assert entry_of(node, tenant).policy == "burst-share"


def test_a_policy_that_needs_cores_is_refused_without(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    with pytest.raises(QuotaError, match=r'--policy: "fixed-share" needs cores.*add --cores'):
        set_of(node, tenant, policy="fixed-share")
    assert node.overrides.of(tenant["id"]) == {}


def test_more_cores_than_the_card_has_left_are_refused_with_the_numbers(node: Node) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    opened(node, memory="4GiB", cores="60", devices="0")
    with pytest.raises(NoRoom, match=r"no room for 41 % .*: card 0 has 40 % left \(train-.* 60\)"):
        set_of(node, tenant, cores="41")
    assert entry_of(node, tenant).holdings[0].cores == 30
    assert node.overrides.of(tenant["id"]) == {}
    set_of(node, tenant, cores="40")
    set_of(node, tenant, cores="41", policy="best-effort")


def test_nothing_of_a_set_is_done_where_a_part_of_it_is_refused(node: Node) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    with pytest.raises(NoRoom):
        set_of(node, tenant, cores="40", memory="200GiB")
    before = entry_of(node, tenant)
    assert (before.holdings[0].cores, before.holdings[0].memory_bytes) == (30, 4 * GIB)


def test_every_card_of_a_tenant_has_to_have_them(node: Node) -> None:
    tenant = opened(node, memory="4GiB", cores="30", count="2")
    opened(node, memory="4GiB", cores="60", devices="1")
    with pytest.raises(NoRoom, match="card 1 has 40 % left"):
        set_of(node, tenant, cores="50")


def test_all_of_the_cores_are_a_whole_card_which_a_share_does_not_become(node: Node) -> None:
    tenant = opened(node, memory="4GiB", cores="30")
    with pytest.raises(QuotaError, match=r'--cores: "100" is a whole card.*set 99 or less'):
        set_of(node, tenant, cores="100")


def test_compute_is_not_set_for_whole_cards(node: Node) -> None:
    tenant = opened(node, count="1")
    with pytest.raises(NotResizable, match="has whole cards"):
        set_of(node, tenant, cores="40")


@pytest.mark.parametrize(
    ("key", "text"),
    [("cores", "0"), ("policy", "fair"), ("weight", "0"), ("priority", "10"), ("class_", "best")],
)
def test_what_is_no_value_is_refused(node: Node, key: str, text: str) -> None:
    tenant = opened(node, memory="4GiB", cores="30")
    with pytest.raises(QuotaError, match=f"--{key.rstrip('_')}: "):
        set_of(node, tenant, **{key: text})


def test_ceilings_are_for_who_asks(tmp_path: Path) -> None:
    ceilings = Ceilings(cores=20, weight=2, priority=7, policies=("best-effort", "fixed-share"))
    config = Config(terms=Terms(Defaults(), ceilings, Together(cores=30)))
    with fakes.node(tmp_path, FakeDriver(fakes.card(0)), config) as node:
        tenant = opened(node, memory="4GiB", cores="20")
        assert entry_of(node, tenant).priority == 7
        set_of(node, tenant, cores="60", policy="native-burst-share", weight="9", priority="0")
        entry = entry_of(node, tenant)
        assert (entry.holdings[0].cores, entry.weight, entry.priority) == (60, 9, 0)


def test_what_was_set_of_memory_alone_leaves_compute_as_it_was(node: Node) -> None:
    tenant = opened(node, memory_percent="10", cores="30", policy="burst-share", priority="3")
    before = entry_of(node, tenant)
    set_of(node, tenant, memory="6GiB")
    after = entry_of(node, tenant)
    assert (after.policy, after.priority) == (before.policy, before.priority)
    assert "memory-percent" not in after.quota
    set_of(node, tenant, cores="31")
    assert entry_of(node, tenant).holdings[0].cores == 31


def test_a_cards_policy_holds_for_its_tenants_and_sets_their_cores_aside(node: Node) -> None:
    burst = opened(node, memory="4GiB", cores="30", policy="native-burst-share", devices="0")
    plain = opened(node, memory="4GiB", devices="0")
    assert (permille(node, burst), permille(node, plain)) == (968, 32)
    told: list[str] = []
    node.shares_changed = lambda: told.append("told")
    shares.set_policy("GPU-0000", "fixed-share", node)
    assert told == ["told"]
    assert (permille(node, burst), permille(node, plain)) == (300, 700)
    assert entry_of(node, burst).holdings[0].reserved_cores == 30
    assert entry_of(node, burst).policy == "native-burst-share"
    assert [card["policy"] for card in tenant_row(entry_of(node, burst), node)["cards"]] == [
        "fixed-share"
    ]
    with pytest.raises(NoRoom, match="has 70 % of its compute left"):
        opened(node, memory="4GiB", cores="71", policy="native-burst-share", devices="0")
    shares.set_policy("GPU-0000", "", node)
    assert entry_of(node, burst).holdings[0].reserved_cores == 0
    assert permille(node, burst) == 968


def test_a_card_whose_containers_share_alike_sets_nothing_aside(node: Node) -> None:
    shares.set_policy("GPU-0000", "best-effort", node)
    found = [opened(node, memory="4GiB", cores="90", devices="0") for _ in range(2)]
    assert [permille(node, one) for one in found] == [500, 500]
    with pytest.raises(NoRoom, match=r"cannot set 180 % of its compute aside.*train 90, train-"):
        shares.set_policy("GPU-0000", "", node)
    assert node.policy_of("GPU-0000") == "best-effort"
    other = opened(node, memory="4GiB", cores="90", devices="1")
    assert permille(node, other) == 900


def test_what_is_set_for_a_container_stands_above_its_cards_policy(node: Node) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    opened(node, memory="4GiB", devices="0")
    shares.set_policy("GPU-0000", "best-effort", node)
    assert permille(node, tenant) == 500
    set_of(node, tenant, policy="fixed-share")
    assert permille(node, tenant) == 300
    assert entry_of(node, tenant).holdings[0].reserved_cores == 30


def test_a_cards_policy_outlives_the_daemon(tmp_path: Path) -> None:
    with fakes.node(tmp_path) as before:
        shares.set_policy("GPU-0000", "burst-share", before)
    with fakes.again(tmp_path) as after:
        assert [room.policy for room in after.rooms()] == ["burst-share"]


def test_a_daemon_that_ended_between_file_and_ledger_settles_it(tmp_path: Path) -> None:
    with fakes.node(tmp_path) as before:
        tenant = opened(before, memory="4GiB", cores="30")
        before.card_overrides.set("GPU-0000", {"policy": "best-effort"})
    with fakes.again(tmp_path) as after:
        assert entry_of(after, tenant).holdings[0].reserved_cores == 30
        release.adopt(after)
        assert entry_of(after, tenant).holdings[0].reserved_cores == 0


def test_who_ends_leaves_its_part_to_the_others(node: Node) -> None:
    first, second = (opened(node, memory="4GiB", devices="0") for _ in range(2))
    told: list[int] = []
    node.shares_changed = lambda: told.append(permille(node, first))
    release.end(second["key"], node, "it is gone")
    assert told == [1000]


@pytest.mark.parametrize("policy", ["fixed-share", "burst-share", "best-effort"])
def test_a_weight_that_nothing_comes_of_is_refused(node: Node, policy: str) -> None:
    tenant = opened(node, memory="4GiB", cores="30", policy=policy)
    before = entry_of(node, tenant)
    with pytest.raises(QuotaError, match=rf"under native-burst-share only.* under {policy}; add "):
        set_of(node, tenant, weight="3")
    assert entry_of(node, tenant) == before
    assert node.overrides.of(tenant["id"]) == {}
    set_of(node, tenant, weight="3", policy="native-burst-share")
    assert entry_of(node, tenant).weight == 3


def test_a_weight_counts_where_the_cards_own_policy_is_native(node: Node) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    shares.set_policy(entry_of(node, tenant).holdings[0].uuid, "native-burst-share", node)
    set_of(node, tenant, weight="3")
    assert entry_of(node, tenant).weight == 3
