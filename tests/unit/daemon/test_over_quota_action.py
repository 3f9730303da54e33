# SPDX-License-Identifier: Apache-2.0
"""`set --over-quota`: the operator's word for one container, above the node's, and lasting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon.operator.resize import NotResizable, set_over_quota_action
from gpushare.daemon.store.overrides import Overrides
from gpushare.daemon.views.status_rows import tenant_row
from gpushare.quota.errors import QuotaError
from gpushare.quota.request_policy import RequestPolicy

from . import fakes
from .fakes import FakeDaemon
from .operations import entry_of, opened


def test_it_stands_above_the_nodes_and_outlives_the_daemon(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB")
    assert node.over_quota_action(entry_of(node, tenant)) == "freeze"
    set_over_quota_action(entry_of(node, tenant), "kill", node)
    assert tenant_row(entry_of(node, tenant), node)["over_quota_action"] == "kill"
    assert Overrides(node.config.state_dir).of(tenant["id"]) == {"over-quota-action": "kill"}


def test_an_unknown_choice_is_refused(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB")
    with pytest.raises(QuotaError, match="Write observe, warn, freeze or kill"):
        set_over_quota_action(entry_of(node, tenant), "shoot", node)
    assert node.overrides.of(tenant["id"]) == {}


def test_a_whole_card_is_not_judged(node: FakeDaemon) -> None:
    tenant = opened(node, count="1")
    with pytest.raises(NotResizable, match="so the audit does not check it"):
        set_over_quota_action(entry_of(node, tenant), "kill", node)
    assert tenant_row(entry_of(node, tenant), node)["over_quota_action"] == ""


def test_a_namespaces_action_overrides_the_nodes(tmp_path: Path) -> None:
    config = Config(
        terms=RequestPolicy(over="warn"), namespaces=(("team-a", RequestPolicy(over="kill")),)
    )
    with fakes.node(tmp_path, None, config) as node:
        entry = fakes.entry()
        assert node.over_quota_action(entry) == "warn"
        assert node.over_quota_action(replace(entry, namespace="team-a")) == "kill"
