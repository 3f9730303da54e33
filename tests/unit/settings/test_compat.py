# SPDX-License-Identifier: Apache-2.0
"""compatibility: what becomes of an image that does not fit, of the node and of a namespace."""

from __future__ import annotations

from pathlib import Path

from gpushare.cli.config import node_rows, section_rows
from gpushare.config import Config, parse
from gpushare.settings import checked, of_namespace

FILE = Path("/etc/gpushare/gpushare.yaml")
TEXT = """
compatibility: refuse
namespaces:
  team-a: {compatibility: ignore}
  "dev-*": {defaults: {cores: 20}}
"""


def test_the_default_is_a_warning() -> None:
    assert Config().terms.compat == parse("", FILE).terms.compat == "warn"


def test_a_namespace_stands_above_the_node() -> None:
    found = parse(TEXT, FILE)
    assert found.terms.compat == "refuse"
    assert found.terms_of("team-a").compat == "ignore"
    assert (found.terms_of("dev-x").compat, found.terms_of("other").compat) == ("refuse", "refuse")


def test_it_is_shown_with_the_line_that_says_it() -> None:
    document = checked(TEXT, FILE)
    of_node = {row.key: row for row in node_rows(document)}
    assert of_node["compatibility"][1:] == ("refuse", f"{FILE}:2")
    assert of_node["namespaces.team-a.compatibility"][1:] == ("ignore", f"{FILE}:4")
    assert "namespaces.dev-*.compat" not in of_node
    inherited = {row.key: row for row in section_rows(document, of_namespace("dev-*"))}
    assert inherited["namespaces.dev-*.compatibility"][1:] == ("refuse", f"{FILE}:2")
