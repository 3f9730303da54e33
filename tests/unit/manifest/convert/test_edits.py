# SPDX-License-Identifier: Apache-2.0
"""Edits of a YAML text: what is taken out and put in, and that all else stays as it was."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.manifest.convert.plan import CannotEdit, DocumentEdits, NewText
from gpushare.text_position import KeyPath
from gpushare.yaml_nodes import parse


def edited(text: str, *changes: tuple[KeyPath, list[str], list[NewText]]) -> str:
    """Return `text` with entries taken from the mappings at some places, and others put in."""
    text = textwrap.dedent(text)
    plan = DocumentEdits(0, text, parse(text).roots[0])
    for path, going, new in changes:
        for key in going:
            plan.remove((*path, key))
        if new:
            plan.add(path, (), new)
    return applied(plan)


def applied(plan: DocumentEdits) -> str:
    list(plan.comments())
    return plan.apply()


def test_lines_end_as_they_did() -> None:
    text = edited("a:\r\n  b: 1\r\n  c: 2\r\n", (("a",), ["b"], [NewText("d", "x")]))
    assert text == "a:\r\n  d: x\r\n  c: 2\r\n"


@pytest.mark.parametrize("value", [" x", "a\nb", "{", "'", "a: b", "30"])
def test_text_that_yaml_would_read_as_something_else_is_quoted(value: str) -> None:
    text = edited("a:\n  b: 1\n", (("a",), ["b"], [NewText("d", value)]))
    assert yaml.safe_load(text) == {"a": {"d": value}}


SHARED = """\
one:
  limits: &part
    gpu: 1
    cpu: 2
two:
  limits:
    <<: *part
    memory: 3
"""


def test_an_aliased_node_changes_where_all_users_agree() -> None:
    text = edited(SHARED, (("one", "limits"), ["gpu"], []), (("two", "limits"), ["gpu"], []))
    assert yaml.safe_load(text) == {
        "one": {"limits": {"cpu": 2}},
        "two": {"limits": {"cpu": 2, "memory": 3}},
    }


def test_a_change_of_an_aliased_node_is_refused_unless_all_change() -> None:
    with pytest.raises(CannotEdit, match=r"two\.limits\.gpu would change, too"):
        edited(SHARED, (("one", "limits"), ["gpu"], []))


def test_an_anchored_item_that_goes_is_written_out_at_its_alias() -> None:
    text = "env:\n  - &a {name: A}\n  - {name: B}\nmore:\n  - *a\n"
    plan = DocumentEdits(0, text, parse(text).roots[0])
    plan.remove(("env", 0))
    assert applied(plan) == "env:\n  - {name: B}\nmore:\n  - {name: A}\n"


WORDS = st.sampled_from(["cpu", "memory", "x/y", "30", "true", "a b", "#no", "null", "~", "- x"])


VALUES: st.SearchStrategy[Any] = st.recursive(
    WORDS | st.integers(0, 99),
    lambda inner: (
        st.dictionaries(WORDS, inner, min_size=1, max_size=4)
        | st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


def mappings(data: Any, path: KeyPath = ()) -> list[KeyPath]:
    """Return the places of the mappings of some data that are beneath another's key."""
    here: list[KeyPath] = [path] if isinstance(data, dict) and path else []
    parts = data.items() if isinstance(data, dict) else enumerate(data)
    for step, value in parts:
        if isinstance(value, (dict, list)):
            here += mappings(value, (*path, step))
    return here


@given(
    st.dictionaries(WORDS, VALUES, min_size=1, max_size=4),
    st.sampled_from([None, True, False]),
    st.booleans(),
    st.data(),
)
def test_any_data_is_edited_as_its_text_is(
    data: dict[str, Any], flow: bool | None, comments: bool, draw: st.DataObject
) -> None:
    """An entry taken out and one put in: the text then says what the data does."""
    text = yaml.safe_dump(
        {"top": data}, default_flow_style=flow, width=1000 if comments else 30, sort_keys=False
    )
    if comments:
        text = "".join(f"{line}   # {n}\n" for n, line in enumerate(text.splitlines()))
    assert yaml.safe_load(text) == {"top": data}
    path = draw.draw(st.sampled_from(mappings({"top": data})))
    mapping: Any = {"top": data}
    for step in path:
        mapping = mapping[step]
    key = draw.draw(st.sampled_from(list(mapping)))
    result = edited(text, (path, [key], [NewText("new", "30"), NewText("two", 2)]))
    items = list(mapping.items())
    position = list(mapping).index(key)
    items[position : position + 1] = [("new", "30"), ("two", 2)]
    mapping.clear()
    mapping.update(items)
    assert yaml.safe_load(result) == {"top": data}
