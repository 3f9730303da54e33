# SPDX-License-Identifier: Apache-2.0
"""`set --reset`: a container has its own request again, at once, or a refusal with names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.config import Config
from gpushare.daemon.operator.reset import reset_quota
from gpushare.daemon.operator.resize import NotResizable, set_over_quota_action, set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.protocol import HostProcessGrant
from gpushare.quota.effective_request import Defaults
from gpushare.quota.errors import QuotaError
from gpushare.quota.request_policy import MaxPerRequest, RequestPolicy

from . import fakes
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import entry_of, grant, opened

ASKED: Mapping[str, str] = {
    "memory": "4GiB",
    "cores": "30",
    "priority": "7",
    "class": "offline",
    "idle-after": "2h",
    "time-limit": "8h",
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


def as_asked(node: FakeDaemon) -> HostProcessGrant:
    return opened(node, devices="0", **{key.replace("-", "_"): text for key, text in ASKED.items()})


def test_all_that_was_set_is_as_it_was(node: FakeDaemon) -> None:
    tenant = as_asked(node)
    before = entry_of(node, tenant)
    page = grant(node, tenant).read_bytes()
    set_quota(before, SET, node)
    assert entry_of(node, tenant) != before
    assert reset_quota(entry_of(node, tenant), (), node) == before
    assert entry_of(node, tenant) == before
    assert node.overrides.of(tenant["id"]) == {}
    offset = 4096 + abi.GRANT_CARD_CORES_PERCENT
    assert grant(node, tenant).read_bytes()[offset : offset + 4] == page[offset : offset + 4]


@pytest.mark.parametrize("key", SET)
def test_one_key_goes_back_and_the_others_stay(node: FakeDaemon, key: str) -> None:
    tenant = as_asked(node)
    before = entry_of(node, tenant)
    changed = set_quota(before, SET, node)
    after = reset_quota(changed, [key], node)
    assert after.quota.get(key) == before.quota.get(key)
    others = {name: row for name, row in changed.quota.items() if name != key}
    assert {name: row for name, row in after.quota.items() if name != key} == others
    assert node.overrides.of(tenant["id"]).keys() == SET.keys() - {key}


def test_a_percentage_is_one_again(node: FakeDaemon) -> None:
    tenant = opened(node, memory_percent="10", devices="0")
    before = entry_of(node, tenant)
    set_quota(before, {"memory": "6GiB"}, node)
    after = reset_quota(entry_of(node, tenant), ["memory"], node)
    assert after == before
    assert after.allocations[0].memory_bytes == 14 * GIB


def test_a_limit_that_grew_along_goes_back_along(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", memory_limit="5GiB", devices="0")
    before = entry_of(node, tenant)
    changed = set_quota(before, {"memory": "6GiB"}, node)
    assert changed.allocations[0].memory_limit_bytes == 6 * GIB
    assert reset_quota(changed, ["memory"], node) == before


def test_memory_reserved_by_others_meanwhile_is_not_taken_back(node: FakeDaemon) -> None:
    tenant = opened(node, memory="100GiB", cores="80", devices="0")
    set_quota(entry_of(node, tenant), {"memory": "4GiB", "cores": "10"}, node)
    opened(node, memory="100GiB", cores="50", devices="0")
    before = entry_of(node, tenant)
    with pytest.raises(NoRoom, match="cannot grow train by 96 GiB"):
        reset_quota(before, ["memory"], node)
    with pytest.raises(NoRoom, match="no room for 80 % of its compute"):
        reset_quota(before, ["cores"], node)
    with pytest.raises(NoRoom):
        reset_quota(before, (), node)
    assert entry_of(node, tenant) == before
    assert node.overrides.of(tenant["id"]) == {"memory": "4GiB", "cores": "10"}


def test_a_reset_that_contradicts_the_rest_is_refused(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", devices="0")
    set_quota(entry_of(node, tenant), {"cores": "40", "policy": "burst-share"}, node)
    with pytest.raises(QuotaError, match="requires cores"):
        reset_quota(entry_of(node, tenant), ["cores"], node)
    assert reset_quota(entry_of(node, tenant), ["cores", "policy"], node).policy == "best-effort"


@pytest.mark.parametrize("keys", [(), ["memory"], ["weight", "cores"]])
def test_nothing_that_was_set_is_nothing_to_take_back(node: FakeDaemon, keys: list[str]) -> None:
    tenant = as_asked(node)
    with pytest.raises(NotResizable, match=r".* of train is not overridden. See gpushare inspect"):
        reset_quota(entry_of(node, tenant), keys, node)


def test_an_unknown_request_cannot_be_restored(node: FakeDaemon) -> None:
    tenant = as_asked(node)
    node.ledger.add(replace(entry_of(node, tenant), requested={}))
    set_quota(entry_of(node, tenant), {"memory": "6GiB"}, node)
    with pytest.raises(NotResizable, match=r"was not recorded: an earlier version"):
        reset_quota(entry_of(node, tenant), (), node)


def test_without_a_request_the_nodes_default_applies(tmp_path: Path) -> None:
    terms = RequestPolicy(Defaults(memory_bytes=2 * GIB, cores=20), MaxPerRequest(priority=7))
    with fakes.node(tmp_path, FakeDriver(fakes.card(0)), Config(terms=terms)) as node:
        tenant = opened(node, memory="4GiB")
        before = entry_of(node, tenant)
        set_quota(before, {"cores": "50", "priority": "0"}, node)
        after = reset_quota(entry_of(node, tenant), (), node)
        assert after == before
        assert (after.allocations[0].cores, after.priority) == (20, 7)


def test_whole_cards_have_no_quota_to_set_but_the_idle_time(node: FakeDaemon) -> None:
    tenant = opened(node, devices="0")
    before = entry_of(node, tenant)
    changed = set_quota(before, {"idle-after": "90m"}, node)
    assert changed.quota["idle-after"] == {"value": "90m", "source": "operator"}
    assert reset_quota(changed, (), node) == before
    with pytest.raises(NotResizable, match="has whole cards"):
        set_quota(before, {"idle-after": "90m", "cores": "30"}, node)
    assert entry_of(node, tenant) == before


def test_the_over_quota_action_returns_to_the_nodes_default(node: FakeDaemon) -> None:
    tenant = as_asked(node)
    set_over_quota_action(entry_of(node, tenant), "kill", node)
    set_quota(entry_of(node, tenant), {"cores": "40"}, node)
    reset_quota(entry_of(node, tenant), ["over-quota-action"], node)
    assert node.overrides.of(tenant["id"]) == {"cores": "40"}
    assert node.over_quota_action(entry_of(node, tenant)) == node.config.terms.over
