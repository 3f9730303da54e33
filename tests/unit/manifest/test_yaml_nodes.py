# SPDX-License-Identifier: Apache-2.0
"""Text to nodes: where everything stands, what aliases bring, and what is too much."""

from __future__ import annotations

import pytest

from gpushare import yaml_nodes
from gpushare.manifest import read
from gpushare.manifest.model import ManifestError
from gpushare.yaml_nodes import (
    MANIFEST_RULES,
    MAX_VALUES,
    fields,
    kind_name,
    parse,
    scalar_text,
    value_at,
)

MAX_DEPTH = MANIFEST_RULES.max_depth


def refusal(text: str) -> str:
    with pytest.raises(ManifestError) as raised:
        read("pod.yaml", text)
    return str(raised.value)


def test_columns_count_characters_of_the_text() -> None:
    text = "é: ü\nlimits:\n  nvidia.com/gpu: '1'\n"
    value = value_at(parse(text).roots[0], "limits", "nvidia.com/gpu")
    assert value is not None
    assert (value.line, value.column) == (3, 19)
    assert text[value.start : value.end] == "'1'"


def test_merged_keys_are_below_written_ones_and_keep_their_position() -> None:
    text = "a: &a {K: '1', L: '2'}\nb: &b {K: '3'}\nenv:\n  <<: [*b, *a]\n  L: '4'\n"
    env = fields(value_at(parse(text).roots[0], "env"))
    assert {name: scalar_text(entry.value) for name, entry in env.items()} == {"K": "3", "L": "4"}
    assert env["K"].value.line == 2


def test_a_quoted_merge_key_is_a_key() -> None:
    root = parse("a: &a {K: '1'}\nb: {'<<': *a}\n").roots[0]
    assert list(fields(value_at(root, "b"))) == ["<<"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", "true or false"),
        ("on", "true or false"),
        ("010", "a number"),
        ("1.5", "a number"),
        ("1:30", "text"),
        ("2024-01-01", "text"),
        ("'1'", "text"),
        ("4Gi", "text"),
        ("~", "nothing"),
        ("!!str 1", "text"),
        ("! 1", "text"),
        ("{}", "a mapping"),
        ("[]", "a list"),
    ],
)
def test_a_scalar_has_the_type_that_kubernetes_reads(text: str, expected: str) -> None:
    value = value_at(parse(f"a: {text}\n").roots[0], "a")
    assert value is not None
    assert kind_name(value) == expected


def test_json_may_be_indented_with_tabs_and_have_letters_in_two_halves() -> None:
    text = '{\n\t"a": "\\ud83d\\ude00",\n\t"b": "x\\/y"\n}\n'
    root = parse(text).roots[0]
    value = value_at(root, "b")
    assert scalar_text(value) == "x/y"
    assert value is not None
    assert value.column == 7


def test_a_key_that_is_there_twice_is_kept_and_the_first_holds() -> None:
    composed = parse("a:\n  K: '1'\n  K: '2'\n")
    assert scalar_text(value_at(composed.roots[0], "a", "K")) == "1"
    (twice,) = composed.duplicates
    assert (twice.key.line, twice.first.line) == (3, 2)


def bomb() -> str:
    levels = (f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    return "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(levels)


def merge_bomb() -> str:
    keys = ",".join(f"k{n}: 1" for n in range(5000))
    return f"a: &a {{{keys}}}\nb: {{<<: [{','.join(['*a'] * 5000)}]}}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bomb(), f"pod.yaml:6:5: comes to over {MAX_VALUES} values; use fewer aliases"),
        (merge_bomb(), f"pod.yaml:2:9: comes to over {MAX_VALUES} values; use fewer aliases"),
        ("a: &a [*a]\n", "pod.yaml:1:8: *a stands within itself; write it out"),
        ("a: *b\n", "pod.yaml:1:4: *b has no &b before it"),
        ("[" * 65, f"pod.yaml:1:65: nested more than {MAX_DEPTH} deep; write it flatter"),
        ("é: é\na: \x07\n", "pod.yaml:2: has the character U+0007; take it out"),
        ("a: [1\n", "pod.yaml:2:1: not YAML: did not find expected ',' or ']'"),
        ("a:\n\tb: 1\n", "not YAML: found character that cannot start any token; indent with "),
        ("a: {{ .Values.x }}\nb: ]\n", "pod.yaml:1:4: a template of Helm, not YAML yet; write "),
    ],
)
def test_an_unreadable_text_is_reported_with_its_position_and_the_fix(
    text: str, expected: str
) -> None:
    assert expected in refusal(text)


def test_depth_counts_the_values_of_aliases() -> None:
    deep = "".join(f"a{n}: &a{n} [[[[[[[[[[*a{n - 1}]]]]]]]]]]\n" for n in range(1, 9))
    assert f"nested more than {MAX_DEPTH} deep" in refusal(f"a0: &a0 [x]\n{deep}")


def test_values_are_counted_over_all_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_nodes, "MAX_VALUES", 100)
    with pytest.raises(ManifestError, match="comes to over 100 values; split the file"):
        read("pod.yaml", "---\na: [1, 2]\n" * 30)


def test_anchors_do_not_reach_the_next_document() -> None:
    assert "*a has no &a before it" in refusal("a: &a 1\n---\nb: *a\n")
