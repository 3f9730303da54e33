# SPDX-License-Identifier: Apache-2.0
"""Profiles on a node: placement, `set --profile` and its reset, and how many more fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import parse
from gpushare.daemon.operator.reset import reset_quota
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.views.profile_rows import profile_rows
from gpushare.daemon.views.status_rows import tenant_row
from gpushare.quota.errors import QuotaError

from . import fakes
from .fakes import GIB, FakeDaemon, FakeDriver, card
from .operations import entry_of, opened

TEXT = """
profiles:
  small: {memory: 8GiB, cores: 10, policy: burst-share}
  third: {equal: 3}
  seat: {memory: 60GiB, policy: best-effort}
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    config = parse(TEXT, Path("gpushare.yaml"))
    cards = card(0, 140), card(1, 100)
    with fakes.node(tmp_path, FakeDriver(*cards), config) as made:
        yield made


def quota_of(node: FakeDaemon, tenant: object) -> dict[str, str]:
    return tenant_row(entry_of(node, tenant), node)["quota"]  # type: ignore[arg-type]


def fits(node: FakeDaemon) -> dict[str, int]:
    return {row["name"]: row["fits"] for row in profile_rows(node)}


def test_a_container_has_what_its_profile_says(node: FakeDaemon) -> None:
    tenant = opened(node, profile="third", devices="1")
    [allocation] = entry_of(node, tenant).allocations
    assert (allocation.memory_bytes, allocation.cores) == (100 * GIB // 3, 33)
    assert quota_of(node, tenant)["profile"] == "third option"
    opened(node, profile="third", devices="1")
    opened(node, profile="third", devices="1")
    with pytest.raises(NoRoom, match=r"no card has room for 33.33 % of its memory and 33 %"):
        opened(node, profile="third", devices="1")


def test_ls_says_how_many_more_fit(node: FakeDaemon) -> None:
    # By compute, twice ten; by thirds of each card; by memory, two and one.
    assert fits(node) == {"small": 20, "third": 6, "seat": 3}
    opened(node, profile="third", devices="1")
    assert fits(node) == {"small": 16, "third": 5, "seat": 3}
    opened(node, memory="130GiB", devices="0")
    assert fits(node) == {"small": 7, "third": 2, "seat": 1}
    node.config = replace(node.config, max_tenants=2)
    assert fits(node)["small"] == 2


def test_a_running_container_changes_to_a_profile_and_back(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", cores="5", devices="1")
    before = entry_of(node, tenant)
    changed = set_quota(before, {"profile": "third"}, node)
    [allocation] = changed.allocations
    assert (allocation.memory_bytes, allocation.cores) == (100 * GIB // 3, 33)
    assert quota_of(node, tenant)["profile"] == "third operator"
    set_quota(changed, {"profile": "small"}, node)
    assert entry_of(node, tenant).policy == "burst-share"
    assert entry_of(node, tenant).allocations[0].memory_bytes == 8 * GIB
    set_quota(entry_of(node, tenant), {"memory": "9GiB"}, node)
    assert "profile" not in quota_of(node, tenant)
    set_quota(entry_of(node, tenant), {"profile": "small"}, node)
    assert reset_quota(entry_of(node, tenant), ("profile",), node) == before
    assert node.overrides.of(tenant["id"]) == {}


def test_a_change_to_a_profile_is_refused_like_any_other(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", devices="1")
    opened(node, memory="90GiB", devices="1")
    before = entry_of(node, tenant)
    with pytest.raises(NoRoom, match="cannot grow"):
        set_quota(before, {"profile": "third"}, node)
    with pytest.raises(QuotaError, match=r"--profile=smell: not a profile of this node. Did you"):
        set_quota(before, {"profile": "smell"}, node)
    with pytest.raises(QuotaError, match="Keep the profile or the other keys"):
        set_quota(before, {"profile": "small", "memory": "1GiB"}, node)
    assert entry_of(node, tenant) == before


def test_a_part_of_cards_of_different_sizes_is_no_one_size(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", count="2")
    with pytest.raises(QuotaError, match=r"have different sizes\. Set --memory and --cores"):
        set_quota(entry_of(node, tenant), {"profile": "third"}, node)
