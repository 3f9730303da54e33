# SPDX-License-Identifier: Apache-2.0
"""How far the audit goes: for the node, for a namespace, and never by a tenant's own word."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.config import Config, ConfigError, parse
from gpushare.quota import QuotaError, read_quota

FILE = Path("/etc/gpushare/gpushare.yaml")


def test_without_a_word_who_is_above_is_frozen_and_nobody_is_ended() -> None:
    plain = Config()
    assert (plain.terms.over, plain.terms.compute, plain.unknown) == ("freeze", "warn", "warn")


def test_a_namespace_stands_above_the_node_key_by_key() -> None:
    text = """
audit: {over: observe, compute: observe, unknown: kill}
namespaces:
  team-a:
    audit: {over: kill}
  "dev-*": {}
"""
    found = parse(text, FILE)
    assert found.unknown == "kill"
    assert (found.terms_of("").over, found.terms_of("other").over) == ("observe", "observe")
    assert (found.terms_of("team-a").over, found.terms_of("team-a").compute) == ("kill", "observe")
    assert found.terms_of("dev-x").over == "observe"
    assert found.users.over == "observe"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "audit: {over: freze}",
            'audit.over: "freze" is not one of its values; write one of observe, warn, freeze',
        ),
        ("audit: {unknown: freeze}", 'audit.unknown: "freeze" is not one of its values'),
        ("namespaces: {a: {audit: {unknown: kill}}}", "namespaces.a.audit.unknown: no such key"),
        ("users: {audit: {over: kill}}", "users.audit: no such key"),
    ],
)
def test_what_is_no_choice_is_told(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, FILE)
    assert told in str(caught.value)


def test_no_annotation_and_no_variable_chooses() -> None:
    with pytest.raises(QuotaError, match="does not know"):
        read_quota({"gpushare.io/on-over": "observe", "gpushare.io/memory": "4GiB"}, {})
    with pytest.raises(QuotaError, match="does not know"):
        read_quota({}, {"GPUSHARE_ON_OVER": "observe", "GPUSHARE_MEMORY": "4GiB"})
