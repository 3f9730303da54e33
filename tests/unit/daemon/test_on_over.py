# SPDX-License-Identifier: Apache-2.0
"""`set --on-over`: the operator's word for one container, above the node's, and lasting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon.control.on_over import set_on_over
from gpushare.daemon.control.reset import reset_quota
from gpushare.daemon.control.resize import NotResizable
from gpushare.daemon.node import Node
from gpushare.daemon.store.overrides import Overrides
from gpushare.daemon.views.rows import tenant_row
from gpushare.quota import QuotaError, Terms

from . import fakes
from .operations import entry_of, opened


def test_it_stands_above_the_nodes_and_outlives_the_daemon(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    assert node.audit.choice(entry_of(node, tenant)) == "freeze"
    set_on_over(entry_of(node, tenant), "kill", node)
    assert tenant_row(entry_of(node, tenant), node)["on_over"] == "kill"
    assert Overrides(node.config.state_dir).of(tenant["id"]) == {"on-over": "kill"}


def test_it_is_taken_back_like_anything_that_was_set(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    set_on_over(entry_of(node, tenant), "kill", node)
    reset_quota(entry_of(node, tenant), ["on-over"], node)
    assert node.audit.choice(entry_of(node, tenant)) == "freeze"


def test_a_quota_that_is_set_leaves_it(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    set_on_over(entry_of(node, tenant), "warn", node)
    node.overrides.set(tenant["id"], {"memory": "5GiB"})
    assert node.audit.choice(entry_of(node, tenant)) == "warn"


def test_what_is_no_choice_is_refused(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    with pytest.raises(QuotaError, match="write observe, warn, freeze or kill"):
        set_on_over(entry_of(node, tenant), "shoot", node)
    assert node.overrides.of(tenant["id"]) == {}


def test_a_whole_card_is_not_judged(node: Node) -> None:
    tenant = opened(node, count="1")
    with pytest.raises(NotResizable, match="nothing of it is judged"):
        set_on_over(entry_of(node, tenant), "kill", node)
    assert tenant_row(entry_of(node, tenant), node)["on_over"] == ""


def test_a_namespaces_word_stands_above_the_nodes(tmp_path: Path) -> None:
    config = Config(terms=Terms(over="warn"), namespaces=(("team-a", Terms(over="kill")),))
    with fakes.node(tmp_path, None, config) as node:
        entry = fakes.entry()
        assert node.audit.choice(entry) == "warn"
        assert node.audit.choice(replace(entry, namespace="team-a")) == "kill"
