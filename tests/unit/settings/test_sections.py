# SPDX-License-Identifier: Apache-2.0
"""Sections of gpushare.yaml: the node, its namespaces, and the line that sets each value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cli.config import node_rows, section_rows
from gpushare.config import Config, parse
from gpushare.oci.request import parse_spec_request
from gpushare.prices import Prices, Rate
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request import QuotaRequest, to_record
from gpushare.quota.request_policy import Dialects, IdlePolicy, RequestPolicy
from gpushare.quota.values import Duration, exact_duration, parse_duration
from gpushare.settings import ConfigError, checked, of_namespace
from tools.check.command import ROOT

FILE = Path("/etc/gpushare/gpushare.yaml")
CARDS = """\
max_tenants: 9
cards:
  A100: {allowed_mode: shared, max_tenants: 4}
  PCIE: {allowed_mode: exclusive, max_tenants: 5}
  "1": {max_tenants: 2}
  GPU-1:
    allowed_mode: any
  "10": {allowed_mode: exclusive}
namespaces:
  team: {max_per_node: {cards: 2, models: {A100: {memory: 8GiB}}}}
"""
OF_NAMESPACES = """
audit: {over_quota: observe, gate_bypass: observe, unallocated: kill}
compatibility: refuse
dialects: {accept: [hami]}
idle: {after: 2h, action: warn}
namespaces:
  team-a:
    audit: {over_quota: kill}
    compatibility: ignore
    dialects: {mode: strict}
    idle: {after: 30m}
  "dev-*": {idle: {after: never}}
"""
PRICES = """
prices:
  currency: EUR
  gpu_hour: 1.20
  gib_hour: 0.02
  models:
    "H200 NVL": {gpu_hour: 3}
    h200: {gpu_hour: 4, gib_hour: 0}
"""


def test_the_defaults_freeze_over_quota_warn_of_images_and_take_all_dialects() -> None:
    plain = Config()
    assert (plain.terms.over, plain.terms.compute, plain.unknown) == ("freeze", "warn", "warn")
    assert plain.terms.compat == "warn"
    assert plain.terms.dialects == Dialects("lenient", None, "refuse")
    assert plain.terms.idle == IdlePolicy(None, "report")
    assert (plain.labels, plain.prices) == ((), Prices())
    assert Prices().rate_of("NVIDIA H200") == Rate(0, 0)
    assert parse("prices:", FILE).prices == Prices()


def test_a_namespace_stands_above_the_node_key_by_key() -> None:
    found = parse(OF_NAMESPACES, FILE)
    assert (found.unknown, found.users.over) == ("kill", "observe")
    other, team, dev = (found.terms_of(name) for name in ("other", "team-a", "dev-x"))
    assert found.terms.over == other.over == dev.over == "observe"
    assert (team.over, team.compute) == ("kill", "observe")
    assert (other.compat, team.compat, dev.compat) == ("refuse", "ignore", "refuse")
    hami = frozenset({"hami"})
    assert (other.dialects, team.dialects) == (Dialects("lenient", hami), Dialects("strict", hami))
    warned = [one.idle for one in (other, team, dev)]
    assert warned == [IdlePolicy(7200, "warn"), IdlePolicy(1800, "warn"), IdlePolicy(None, "warn")]


def test_each_value_is_shown_with_the_line_that_sets_it() -> None:
    document = checked(OF_NAMESPACES, FILE)
    of_node = {row.key: row for row in node_rows(document)}
    assert of_node["compatibility"][1:] == ("refuse", f"{FILE}:3")
    assert of_node["namespaces.team-a.compatibility"][1:] == ("ignore", f"{FILE}:9")
    assert of_node["dialects.accept"][1:] == (["hami"], f"{FILE}:4")
    assert of_node["dialects.mode"][1:] == ("lenient", "default")
    assert "namespaces.dev-*.compatibility" not in of_node
    inherited = {row.key: row for row in section_rows(document, of_namespace("dev-*"))}
    assert inherited["namespaces.dev-*.compatibility"][1:] == ("refuse", f"{FILE}:3")
    of_cards = {row.key: (row.value, row.origin) for row in node_rows(checked(CARDS, FILE))}
    assert of_cards["cards.A100.allowed_mode"] == ("shared", f"{FILE}:3")
    assert of_cards["namespaces.team.max_per_node.models.A100.memory"] == ("8GiB", f"{FILE}:10")


def test_no_annotation_and_no_variable_chooses_what_the_audit_does() -> None:
    with pytest.raises(QuotaError, match="unknown key"):
        parse_request({"gpushare.io/on-over": "observe", "gpushare.io/memory": "4GiB"}, {}).valid()
    with pytest.raises(QuotaError, match="unknown key"):
        parse_request({}, {"GPUSHARE_ON_OVER": "observe", "GPUSHARE_MEMORY": "4GiB"}).valid()


# --- cards ---


@pytest.mark.parametrize(
    ("index", "uuid", "model", "mode", "max_tenants"),
    [
        (0, "GPU-0", "H200", "any", 9),
        (0, "GPU-0", "a100-sxm4", "shared", 4),
        (0, "GPU-0", "A100-PCIE", "shared", 4),
        (0, "GPU-0", "V100-PCIE", "exclusive", 5),
        (1, "GPU-9", "A100-SXM4", "shared", 2),
        (1, "GPU-1", "A100-SXM4", "any", 2),
        (10, "GPU-9", "H200", "exclusive", 9),
        # A number is an index and no part of a model's name.
        (3, "GPU-3", "RTX 10", "any", 9),
    ],
)
def test_the_nearest_section_of_a_card_holds_key_by_key(
    index: int, uuid: str, model: str, mode: str, max_tenants: int
) -> None:
    rule = parse(CARDS, FILE).rule_of(index, uuid, model)
    assert (rule.mode, rule.max_tenants) == (mode, max_tenants)


def test_the_line_of_each_value_of_a_card_is_known() -> None:
    where = parse(CARDS, FILE).rule_of(1, "GPU-1", "A100").where
    assert where == {
        "allowed_mode": "cards.GPU-1.allowed_mode, /etc/gpushare/gpushare.yaml:7",
        "max_tenants": "cards.1.max_tenants, /etc/gpushare/gpushare.yaml:5",
    }


# --- dialects ---


def dialects(text: str) -> Dialects:
    return parse(text, FILE).terms.dialects


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(text, FILE)
    return str(refused.value)


def test_a_node_takes_the_dialects_that_it_names() -> None:
    found = dialects("dialects:\n  mode: strict\n  accept: [hami]\n  unaccepted: ignore\n")
    assert found == Dialects("strict", frozenset({"hami"}), "ignore")
    assert dialects("dialects: {accept: []}\n").accept == frozenset()
    assert dialects("dialects: {accept: all}\n") == Dialects()


def test_a_refusal_names_the_line_that_leaves_the_dialect_out() -> None:
    with pytest.raises(QuotaError, match=r"dialects\.accept, /etc/gpushare/gpushare\.yaml:2\)"):
        parse_request(
            {},
            {"CUDA_DEVICE_MEMORY_LIMIT": "4g"},
            dialects=dialects("dialects:\n  accept: []\n"),
        ).valid()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dialects: {accept: [hamy]}\n", '"hamy" is not a dialect; did you mean hami?'),
        (
            "dialects: {accept: [x-y-z]}\n",
            '"x-y-z" is not a dialect; the dialects are nvidia, hami, ',
        ),
        (
            "dialects: {accept: some}\n",
            '"some" has an invalid format; write e.g. [hami, kai], or all',
        ),
        ("dialects: {accept: 5}\n", "5 is not a list or text; write e.g. [hami, kai], or all"),
        ("dialects: {mode: loose}\n", '"loose" is not a valid value; write one of strict'),
        ("users: {dialects: {mode: strict}}\n", "users.dialects: unknown key"),
    ],
)
def test_an_error_in_dialects_is_reported_with_its_fix(text: str, said: str) -> None:
    assert said in problem(text)


def test_a_mistake_in_the_nodes_file_is_reported_once() -> None:
    text = "dialects: {accept: [hamy]}\nnamespaces:\n  team:\n    trust: {env: request}\n"
    assert problem(text).count("hamy") == 1


# --- idle ---


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


# --- reports ---


def test_a_models_price_replaces_that_of_all_cards() -> None:
    found = parse(PRICES, FILE).prices
    assert (found.currency, found.basis) == ("EUR", "larger")
    assert found.rate_of("NVIDIA A100-SXM4-80GB") == Rate(1.2, 0.02)
    assert found.rate_of("NVIDIA H200 NVL") == Rate(3, 0.02)
    assert found.rate_of("NVIDIA H200") == Rate(4, 0)


def test_labels_of_reports_are_names() -> None:
    assert parse("labels: [team, example.com/cost]", FILE).labels == ("team", "example.com/cost")
