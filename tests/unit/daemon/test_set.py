# SPDX-License-Identifier: Apache-2.0
"""set and set --reset, and the settings kept on disk: the record, the page, the next container."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.config import parse
from gpushare.daemon import scheduler_sync
from gpushare.daemon.cards.context_size import ContextSizes
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.node import Overrides, OverridesError
from gpushare.daemon.observed import NO_FIGURES, ComputeUsage
from gpushare.daemon.operator.reload import set_card_policy
from gpushare.daemon.operator.resize import (
    NotResizable,
    reset_quota,
    set_over_quota_action,
    set_quota,
)
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.daemon.views.why import explain_memory
from gpushare.protocol import HostProcessGrant
from gpushare.quota.errors import QuotaError

from . import fakes
from .bundles import BundleToCreate, ContainerdBundles
from .fake_process import FakeProcess
from .fakes import GIB, MIB, FakeDaemon, FakeDriver, card
from .operations import ME, bound, entry_of, grant, opened
from .test_burst import uses
from .test_placement import cordon_node


def test_a_quota_below_the_use_refuses_new_memory_and_takes_none_away(
    node: FakeDaemon,
) -> None:
    tenant = opened(node, memory="4GiB", devices="0")
    uses(node, tenant, 3)
    row = tenant_status(set_quota(entry_of(node, tenant), {"memory": "1GiB"}, node), node)
    [card] = row["cards"]
    assert (card["quota_bytes"], card["limit_bytes"]) == (GIB, GIB)
    assert (card["used_bytes"], card["over_limit_bytes"]) == (3 * GIB, 2 * GIB)
    [warning] = row["warnings"]
    assert warning.endswith("3 GiB of 1 GiB on card 0: allocations fail until it frees 2 GiB")


def test_an_impossible_claim_blocks_no_placement(node: FakeDaemon, program: FakeProcess) -> None:
    tenant = bound(node, program, memory="4GiB", devices="0")
    uses(node, tenant, 1 << 30)
    opened(node, memory="136GiB", devices="0")


def test_a_quota_that_holds_no_context_is_refused(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB")
    node.tenants.pages[tenant["key"]].grant.set_context(0, 500 * MIB)
    with pytest.raises(QuotaError, match="too small for a CUDA context, 500 MiB"):
        set_quota(entry_of(node, tenant), {"memory": "500MiB"}, node)
    assert entry_of(node, tenant).allocations[0].quota_bytes == 4 * GIB
    assert node.node.overrides.of(tenant["id"]) == {}


def set_of(node: FakeDaemon, tenant: HostProcessGrant, **asked: str) -> None:
    set_quota(entry_of(node, tenant), {key.rstrip("_"): text for key, text in asked.items()}, node)


def permille(node: FakeDaemon, tenant: HostProcessGrant) -> int:
    [allocation] = entry_of(node, tenant).allocations
    shares = scheduler_sync.shares_by_card(node.node, node.ledger)
    return shares[allocation.uuid][tenant["key"]].permille


def reserved(node: FakeDaemon, tenant: HostProcessGrant) -> int:
    parts = [one for room in node.accounts.capacities() for one in room.allocations]
    return next(one.cores for one in parts if one.key == tenant["key"])


def test_set_changes_the_page_the_ledger_and_the_next_container(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    told: list[int] = []
    node.loop.settle()
    node.ledger.changed.listeners.append(lambda: told.append(permille(node, tenant)))
    asked = {"memory": "6GiB", "cores": "40", "weight": "7", "priority": "0", "class": "online"}
    asked["policy"] = "native-burst-share"
    set_quota(entry_of(node, tenant), {"memory": "6GiB", "cores": "40"}, node)
    node.loop.settle()
    assert (told, reserved(node, tenant)) == ([400], 40)
    set_quota(entry_of(node, tenant), asked, node)
    entry = entry_of(node, tenant)
    [allocation] = entry.allocations
    assert (allocation.quota_bytes, allocation.cores) == (6 * GIB, 40)
    assert (entry.policy, entry.weight) == ("native-burst-share", 7)
    assert (entry.priority, entry.class_) == (0, "online")
    assert entry.quota["cores"] == {"value": "40", "source": "operator"}
    assert node.node.overrides.of(tenant["id"]) == asked
    row = tenant_status(entry, node)
    assert (row["class"], row["priority"], row["weight"]) == ("online", 0, 7)
    page = grant(node, tenant).read_bytes()[4096:]
    assert int.from_bytes(page[abi.GRANT_CARD_QUOTA_BYTES :][:8], "little") == 6 * GIB
    assert int.from_bytes(page[abi.GRANT_CARD_CORES_PERCENT :][:4], "little") == 40


def test_more_cores_than_the_card_has_left_are_refused_with_the_numbers(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    opened(node, memory="4GiB", cores="60", devices="0")
    with pytest.raises(NoRoom, match=r"no room for 41 % .*: card 0 has 40 % left \(train-.* 60\)"):
        set_of(node, tenant, cores="41")
    assert entry_of(node, tenant).allocations[0].cores == 30
    assert node.node.overrides.of(tenant["id"]) == {}
    with pytest.raises(NoRoom):
        set_of(node, tenant, cores="40", memory="200GiB")
    assert entry_of(node, tenant).allocations[0].cores == 30
    set_of(node, tenant, cores="40")
    set_of(node, tenant, cores="41", policy="best-effort")


def test_a_cards_policy_holds_for_its_tenants_and_sets_their_cores_aside(node: FakeDaemon) -> None:
    burst = opened(node, memory="4GiB", cores="30", policy="native-burst-share", devices="0")
    plain = opened(node, memory="4GiB", devices="0")
    assert (permille(node, burst), permille(node, plain)) == (968, 32)
    told: list[str] = []
    node.ledger.changed.listeners.append(lambda: told.append("told"))
    set_card_policy("GPU-0000", "fixed-share", node)
    assert told == ["told"]
    assert (permille(node, burst), permille(node, plain)) == (300, 700)
    assert reserved(node, burst) == 30
    assert entry_of(node, burst).policy == "native-burst-share"
    assert [card["policy"] for card in tenant_status(entry_of(node, burst), node)["cards"]] == [
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
    with pytest.raises(NoRoom, match="cannot reserve 180 % of its compute"):
        set_card_policy("GPU-0000", "", node)
    assert node.node.policy_of("GPU-0000") == "best-effort"
    other = opened(node, memory="4GiB", cores="90", devices="1")
    assert permille(node, other) == 900


@pytest.mark.parametrize("policy", ["fixed-share", "burst-share", "best-effort"])
def test_a_weight_that_nothing_comes_of_is_refused(node: FakeDaemon, policy: str) -> None:
    tenant = opened(node, memory="4GiB", cores="30", policy=policy)
    before = entry_of(node, tenant)
    with pytest.raises(QuotaError, match=rf"only under native-burst-share.* under {policy}. Add "):
        set_of(node, tenant, weight="3")
    assert entry_of(node, tenant) == before
    assert node.node.overrides.of(tenant["id"]) == {}
    set_of(node, tenant, weight="3", policy="native-burst-share")
    assert entry_of(node, tenant).weight == 3


TEXT = """
profiles:
  small: {memory: 8GiB, cores: 10, policy: burst-share}
  third: {equal: 3}
"""


@pytest.mark.parametrize(("percent", "permille"), [(8, 80), (40, 150), (-40, -400)])
def test_a_correction_takes_at_most_half_a_share_and_says_why(
    node: FakeDaemon, program: FakeProcess, percent: int, permille: int
) -> None:
    tenant = bound(node, program, memory="4GiB", cores="30", policy="fixed-share")
    [allocation] = entry_of(node, tenant).allocations
    compute = ComputeUsage(
        correction_percent=percent, charged_percent=2.0, driver={**NO_FIGURES, 10: 42.0}
    )
    node.observed.compute = {(tenant["key"], allocation.uuid): compute}
    [(_, share)] = scheduler_sync.scheduled_shares(node)[tenant["key"]]
    assert (share.permille, share.correction_permille) == (300, permille)
    record = entry_of(node, tenant)
    evidence = "charged 2 %, the driver measured 42 %: it gets less, but half of its share at least"
    for said in (
        tenant_status(record, node)["warnings"],
        explain_memory(record, node)[0]["advice"],
    ):
        assert any(evidence in text for text in said) == (percent > 0)


@pytest.fixture
def profiled(tmp_path: Path) -> Iterator[FakeDaemon]:
    config = parse(TEXT, Path("gpushare.yaml"))
    cards = card(0, 140), card(1, 100)
    with fakes.node(tmp_path, FakeDriver(*cards), config) as made:
        yield made


def test_a_container_has_what_its_profile_says(profiled: FakeDaemon) -> None:
    tenant = opened(profiled, profile="third", devices="1")
    [allocation] = entry_of(profiled, tenant).allocations
    assert (allocation.quota_bytes, allocation.cores) == (100 * GIB // 3, 33)
    assert tenant_status(entry_of(profiled, tenant), profiled)["quota"]["profile"] == "third option"
    opened(profiled, profile="third", devices="1")
    opened(profiled, profile="third", devices="1")
    with pytest.raises(
        NoRoom,
        match=r"the requested card \(--devices\) has no room for 33.33 % of its memory and 33 %",
    ):
        opened(profiled, profile="third", devices="1")


ASKED: Mapping[str, str] = {
    "memory": "4GiB",
    "cores": "30",
    "priority": "7",
    "class": "offline",
    "idle_after": "2h",
    "time_limit": "8h",
}


SET: Mapping[str, str] = {
    "memory": "6GiB",
    "memory-limit": "8GiB",
    "cores": "40",
    "policy": "burst-share",
    "priority": "1",
    "class": "online",
    "idle-after": "90m",
    "time-limit": "12h",
}


@pytest.mark.parametrize("change", [{"idle-after": "90m"}, {"memory": "6GiB"}])
def test_defaults_of_now_are_for_what_is_set_of_compute(
    node: FakeDaemon, change: dict[str, str]
) -> None:
    """Those that a reload brought are for containers to come, not for another key of this one."""
    tenant = opened(node, memory="4GiB", devices="0")
    terms = node.node.config.terms
    defaults = replace(terms.defaults, cores=30, policy="burst-share")
    ceilings = replace(terms.max_per_request, priority=8)
    now = replace(terms, defaults=defaults, max_per_request=ceilings)
    node.node.config = replace(node.node.config, terms=now)
    before = entry_of(node, tenant)
    changed = set_quota(before, change, node)
    assert [one.cores for one in changed.allocations] == [0]
    assert (changed.policy, changed.priority) == (before.policy, before.priority)
    changed = set_quota(changed, {"cores": "40"}, node)
    assert changed.policy == "burst-share"
    assert set_quota(changed, {"memory": "5GiB"}, node).policy == "burst-share"


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        (ASKED, SET),
        ({"memory_percent": "10"}, {"memory": "6GiB"}),
        ({"memory": "4GiB", "memory_limit": "5GiB"}, {"memory": "6GiB"}),
        ({"profile": "small"}, {"cores": "20"}),
        ({"count": "1"}, {"idle-after": "90m"}),
    ],
)
def test_what_was_requested_otherwise_is_that_again(
    profiled: FakeDaemon, asked: dict[str, str], changes: dict[str, str]
) -> None:
    tenant = opened(profiled, **asked)
    before = entry_of(profiled, tenant)
    changed = set_quota(before, changes, profiled)
    assert changed.quota != before.quota
    assert profiled.node.overrides.of(tenant["id"]).keys() >= changes.keys()
    assert reset_quota(changed, profiled) == before == entry_of(profiled, tenant)
    assert profiled.node.overrides.of(tenant["id"]) == {}


def test_what_has_no_share_or_is_not_overridden_is_not_changed(node: FakeDaemon) -> None:
    with pytest.raises(NotResizable, match="has whole cards"):
        set_quota(
            entry_of(node, opened(node, devices="1")), {"idle-after": "90m", "cores": "9"}, node
        )
    shared = entry_of(node, opened(node, memory="4GiB"))
    whole = replace(shared, allocations=(replace(shared.allocations[0], whole=True),))
    with pytest.raises(NotResizable, match="has no share of a card, so the audit does not check"):
        set_over_quota_action(whole, "kill", node.node)
    with pytest.raises(NotResizable, match="has no GPU"):
        set_quota(replace(shared, allocations=()), {"memory": "1GiB"}, node)
    with pytest.raises(NotResizable, match=r"the quota of .* is not overridden"):
        reset_quota(shared, node)
    with pytest.raises(QuotaError, match="a whole card, but this container has a share"):
        set_quota(shared, {"cores": "100"}, node)
    set_over_quota_action(shared, "kill", node.node)
    assert node.node.over_quota_action(shared) == "kill"
    reset_quota(shared, node)
    assert node.node.over_quota_action(shared) == node.node.config.terms.over


def test_a_setting_that_cannot_be_written_is_not_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = Overrides(tmp_path)
    overrides.set("one", {"memory": "4GiB"})

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        overrides.set("one", {"memory": "6GiB"})
    assert overrides.of("one") == {"memory": "4GiB"}
    monkeypatch.undo()
    assert Overrides(tmp_path).of("one") == {"memory": "4GiB"}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_measured_context_is_kept_by_model_and_driver_version(tmp_path: Path) -> None:
    ContextSizes(tmp_path, "580").keep(card(0), 500 * MIB)
    assert ContextSizes(tmp_path, "580").sizes.get(card(1).model, 0) == 500 * MIB
    assert ContextSizes(tmp_path, "580").sizes.get(card(0, model="T4").model, 0) == 0
    assert ContextSizes(tmp_path, "581").sizes.get(card(0).model, 0) == 0


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\0" * 64,
        "{",
        "[]",
        '{"one": 4}',
        '{"one": {"speed": "1"}}',
        '{"one": {"policy": "fastest"}}',
        '{"one": {"memory": "4"}}',
    ],
)
def test_damaged_settings_are_not_taken_for_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / "overrides.json"
    file.write_text(content)
    with pytest.raises(OverridesError, match="remove it to continue without them"):
        Overrides(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(OverridesError, match="Is a directory"):
        Overrides(tmp_path)


NOBODY = replace(ME, rootless=True, uid=65534)


def test_a_namespace_may_trust_the_environment_otherwise(tmp_path: Path) -> None:
    with cordon_node(tmp_path, 'namespaces: {"dev-*": {trust: {env: request}}}\n') as made:
        for namespace, given in (("dev-y", "shared"), ("team", "none")):
            engine = ContainerdBundles(tmp_path, {}, pod=namespace, namespace=namespace)
            container = engine.container(f"train-{namespace}", "GPUSHARE_MEMORY=1GiB")
            assert container.create(made, "weak")["mode"] == given


def test_a_request_for_all_cards_obeys_the_ceiling_of_their_number(tmp_path: Path) -> None:
    hook = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["hook", "prestart"]}
    env = ("NVIDIA_VISIBLE_DEVICES=all", "GPUSHARE_MEMORY=1GiB")
    with cordon_node(tmp_path, "max_per_request: {count: 1}\n") as made:
        container = BundleToCreate(tmp_path / "b", *env, hooks={"prestart": [hook]})
        with pytest.raises(NoRoom, match=r"all 2 cards .* ceiling 1 \(max_per_request.count"):
            container.create(made)


def test_a_user_may_not_reserve_more_than_half_of_a_card(tmp_path: Path) -> None:
    with cordon_node(tmp_path, count=1) as made:
        with pytest.raises(NoRoom) as refused:
            open_tenant(NOBODY, {"memory": "100GiB"}, made, made.room)
        assert "card 0 would give user 65534 100 GiB in all, above 70 GiB" in str(refused.value)
        open_tenant(NOBODY, {"memory": "40GiB"}, made, made.room)
        with pytest.raises(NoRoom, match="user 65534 80 GiB in all, above 70 GiB"):
            open_tenant(NOBODY, {"memory": "40GiB"}, made, made.room)
        with pytest.raises(NoRoom, match="user 65534 120 GiB in all, above 70 GiB"):
            open_tenant(NOBODY, {"memory": "1GiB", "memory-limit": "80GiB"}, made, made.room)
        # Another user has a half of their own, and root is the operator.
        open_tenant(replace(NOBODY, uid=1000), {"memory": "40GiB"}, made, made.room)
        open_tenant(ME, {"memory": "50GiB"}, made, made.room)
