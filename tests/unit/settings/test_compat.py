# SPDX-License-Identifier: Apache-2.0
"""compat: what becomes of an image that does not fit, of the node and of a namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.config import Config, ConfigError, parse
from gpushare.settings import of_namespace, show
from gpushare.settings.read import checked

FILE = Path("/etc/gpushare/gpushare.yaml")
TEXT = """
compat: block
namespaces:
  team-a: {compat: ignore}
  "dev-*": {defaults: {cores: 20}}
"""


def test_without_a_word_it_is_a_warning() -> None:
    assert Config().terms.compat == parse("", FILE).terms.compat == "warn"


def test_a_namespace_stands_above_the_node() -> None:
    found = parse(TEXT, FILE)
    assert found.terms.compat == "block"
    assert found.terms_of("team-a").compat == "ignore"
    assert (found.terms_of("dev-x").compat, found.terms_of("other").compat) == ("block", "block")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "compat: freeze",
            'compat: "freeze" is not one of its values; write one of ignore, warn, blo',
        ),
        ("namespaces: {a: {compat: kill}}", 'namespaces.a.compat: "kill" is not one of its value'),
        ("users: {compat: warn}", "users.compat: no such key"),
    ],
)
def test_what_is_no_choice_is_told(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, FILE)
    assert told in str(caught.value)


def test_it_is_shown_with_the_line_that_says_it() -> None:
    document = checked(TEXT, FILE)
    of_node = {row.key: row for row in show.node(document)}
    assert of_node["compat"][1:] == ("block", f"{FILE}:2")
    assert of_node["namespaces.team-a.compat"][1:] == ("ignore", f"{FILE}:4")
    assert "namespaces.dev-*.compat" not in of_node
    inherited = {row.key: row for row in show.section(document, of_namespace("dev-*"))}
    assert inherited["namespaces.dev-*.compat"][1:] == ("block", f"{FILE}:2")
