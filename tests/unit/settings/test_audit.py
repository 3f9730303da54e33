# SPDX-License-Identifier: Apache-2.0
"""How far the audit goes: for the node, for a namespace, and never by a tenant's own word."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.config import Config, parse
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request

FILE = Path("/etc/gpushare/gpushare.yaml")


def test_by_default_a_container_over_quota_is_frozen_and_never_killed() -> None:
    plain = Config()
    assert (plain.terms.over, plain.terms.compute, plain.unknown) == ("freeze", "warn", "warn")


def test_a_namespace_stands_above_the_node_key_by_key() -> None:
    text = """
audit: {over_quota: observe, gate_bypass: observe, unallocated: kill}
namespaces:
  team-a:
    audit: {over_quota: kill}
  "dev-*": {}
"""
    found = parse(text, FILE)
    assert found.unknown == "kill"
    assert (found.terms_of("").over, found.terms_of("other").over) == ("observe", "observe")
    assert (found.terms_of("team-a").over, found.terms_of("team-a").compute) == ("kill", "observe")
    assert found.terms_of("dev-x").over == "observe"
    assert found.users.over == "observe"


def test_no_annotation_and_no_variable_chooses() -> None:
    with pytest.raises(QuotaError, match="unknown key"):
        parse_request({"gpushare.io/on-over": "observe", "gpushare.io/memory": "4GiB"}, {}).valid()
    with pytest.raises(QuotaError, match="unknown key"):
        parse_request({}, {"GPUSHARE_ON_OVER": "observe", "GPUSHARE_MEMORY": "4GiB"}).valid()
