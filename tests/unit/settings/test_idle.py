# SPDX-License-Identifier: Apache-2.0
"""idle: of the node and of a namespace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.config import Config, parse
from gpushare.oci.request import parse_spec_request
from gpushare.quota.parse import parse_request
from gpushare.quota.request import QuotaRequest, to_record
from gpushare.quota.request_policy import IdlePolicy, RequestPolicy
from gpushare.quota.values import Duration, exact_duration, parse_duration
from tools.check.command import ROOT

FILE = Path("/etc/gpushare/gpushare.yaml")
TEXT = """
idle: {after: 2h, action: warn}
namespaces:
  notebooks: {idle: {after: 30m}}
  services: {idle: {after: never}}
"""


def test_by_default_no_container_is_idle() -> None:
    assert Config().terms.idle == parse("", FILE).terms.idle == IdlePolicy(None, "report")


def test_a_namespaces_keys_override_the_nodes() -> None:
    found = parse(TEXT, FILE)
    assert found.terms.idle == IdlePolicy(7200, "warn")
    assert found.terms_of("notebooks").idle == IdlePolicy(1800, "warn")
    assert found.terms_of("services").idle == IdlePolicy(None, "warn")


def test_a_duration_is_the_same_in_the_configuration_and_in_a_request() -> None:
    schema = json.loads((ROOT / "configs/gpushare.schema.json").read_text())
    after = schema["$defs"]["idle"]["properties"]["after"]
    assert after["pattern"] == f"^(never|{Duration.pattern})$"


@given(st.integers(1, 999_999))
def test_a_duration_is_written_as_it_is_read(seconds: int) -> None:
    assert parse_duration(exact_duration(seconds)) == seconds


def read(policy: IdlePolicy, after: str, operator: str = "") -> QuotaRequest:
    annotations = {"gpushare.io/memory": "4GiB", "gpushare.io/idle-after": after}
    requested = parse_spec_request(
        annotations,
        {},
        of_pod=None,
        cards=None,
        terms_of=lambda _: RequestPolicy(idle=policy),
        operator={"idle-after": operator} if operator else None,
    )
    return requested.quota


def effective(policy: IdlePolicy, request: QuotaRequest) -> IdlePolicy:
    return policy.of_container(to_record(request.requested))


@pytest.mark.parametrize("action", ["report", "kick"])
def test_a_container_may_shorten_the_time_and_has_the_nodes_action(action: str) -> None:
    node = IdlePolicy(7200, action)
    request = read(node, "30m")
    assert (request.notes, effective(node, request)) == ((), IdlePolicy(1800, action))


def test_where_the_node_has_no_time_a_container_has_its_own() -> None:
    node = IdlePolicy(None, "report")
    assert effective(node, read(node, "7d")) == IdlePolicy(7 * 86400, "report")


def test_a_longer_time_is_the_nodes_and_says_so() -> None:
    node = IdlePolicy(7200, "pause")
    request = read(node, "7d")
    assert str(request.requested["idle-after"].source) == "default idle.after"
    assert request.requested["idle-after"].text == "2h"
    why = "was not applied: idle.after of this node, 2h, takes precedence"
    assert request.notes == (f'annotation gpushare.io/idle-after "7d" {why}',)
    assert effective(node, request) == node


def test_a_time_that_the_node_gets_later_holds_too() -> None:
    request = read(IdlePolicy(), "7d")
    assert effective(IdlePolicy(60, "kick"), request) == IdlePolicy(60, "kick")
    longer = read(IdlePolicy(60), "7d")
    assert effective(IdlePolicy(7200), longer) == IdlePolicy(7200)


def test_the_operators_time_for_a_container_stands_above_the_nodes() -> None:
    node = IdlePolicy(7200, "pause")
    request = read(node, "30m", operator="7d")
    assert effective(node, request) == IdlePolicy(7 * 86400, "pause")


@pytest.mark.parametrize("text", ["never", "0s", "2 h", "1h30m", "30", "1000000s", ""])
def test_a_request_is_a_duration(text: str) -> None:
    parsed = parse_request({"gpushare.io/idle-after": text, "gpushare.io/memory": "4GiB"}, {})
    [found] = parsed.diagnostics
    assert "not a duration. Write a whole number with the unit s, m, h or d" in str(found.error)


@pytest.mark.parametrize(("env", "seconds"), [("30m", 1800), ("7d", 7200)])
def test_the_environment_may_only_shorten_what_an_annotation_says(env: str, seconds: int) -> None:
    annotations = {"gpushare.io/memory": "4GiB", "gpushare.io/idle-after": "2h"}
    request = parse_request(annotations, {"GPUSHARE_IDLE_AFTER": env}).valid()
    assert request.idle_after_seconds == seconds
