# SPDX-License-Identifier: Apache-2.0
"""What is read of the objects of Kubernetes, of compose and task files, and of YAML itself."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable

import pytest

from gpushare.manifest import read
from gpushare.manifest.check import check
from gpushare.manifest.model import Container, ManifestError, ManifestFile
from gpushare.yaml_nodes import (
    MANIFEST_RULES,
    MAX_VALUES,
    kind_name,
    parse,
    value_at,
)


def manifest(text: str) -> ManifestFile:
    return read("pod.yaml", textwrap.dedent(text))


def only(file: ManifestFile) -> Container:
    (container,) = file.containers
    return container


def test_a_list_is_its_items_and_documents_follow_each_other() -> None:
    pod = "{kind: Pod, metadata: {name: N}, spec: {containers: [{name: c, image: i}]}}"
    text = f"# nothing\n---\n{{kind: List, items: [{pod}, {{kind: Service}}]}}\n---\n{pod}\n---\n"
    found = [(str(document), document.line) for document in manifest(text).documents]
    assert found == [("Pod N", 3), ("Service", 3), ("Pod N", 5)]


MAX_DEPTH = MANIFEST_RULES.max_depth


def refusal(text: str) -> str:
    with pytest.raises(ManifestError) as raised:
        read("pod.yaml", text)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", "true or false"),
        ("010", "a number"),
        ("1.5", "a number"),
        ("1:30", "text"),
        ("2024-01-01", "text"),
        ("4Gi", "text"),
        ("~", "nothing"),
        ("!!str 1", "text"),
        ("! 1", "text"),
        ("{}", "a mapping"),
    ],
)
def test_a_scalar_has_the_type_that_kubernetes_reads(text: str, expected: str) -> None:
    value = value_at(parse(f"a: {text}\n").roots[0], "a")
    assert value is not None
    assert kind_name(value) == expected


def bomb() -> str:
    levels = (f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    return "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(levels)


def merge_bomb() -> str:
    keys = ",".join(f"k{n}: 1" for n in range(5000))
    return f"a: &a {{{keys}}}\nb: {{<<: [{','.join(['*a'] * 5000)}]}}\n"


def fuse() -> str:
    """Return a document of some aliases: only many of them are too many values."""
    return f"a: &a [{'1,' * 40}]\nb: &b [{'*a,' * 40}]\n---\n"


def shared(count: int, annotation: str) -> str:
    """Return a pod of so many containers, which have as many annotations together."""
    annotations = ", ".join(annotation.format(number) for number in range(count) if annotation)
    containers = "".join(f"  - {{name: c{number}}}\n" for number in range(count))
    metadata = f"metadata: {{annotations: {{{annotations}}}}}"
    return f"kind: Pod\n{metadata}\nspec:\n  containers:\n{containers}"


def claims(count: int) -> str:
    """Return a pod that names a template so often, which requests as many devices."""
    devices = ",".join(f"{{deviceClassName: d{number}}}" for number in range(count))
    named = ",".join(
        f"{{name: n{number}, resourceClaimTemplateName: t}}" for number in range(count)
    )
    container = f"{{name: a, resources: {{claims: [{named}]}}}}"
    return (
        f"kind: ResourceClaimTemplate\nmetadata: {{name: t}}\n"
        f"spec: {{spec: {{devices: {{requests: [{devices}]}}}}}}\n---\n"
        f"kind: Pod\nspec: {{resourceClaims: [{named}], containers: [{container}]}}\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bomb(), f"pod.yaml:6:5: comes to over {MAX_VALUES} values; use fewer aliases"),
        (merge_bomb(), f"pod.yaml:2:9: comes to over {MAX_VALUES} values; use fewer aliases"),
        ("---\n" + fuse() * 60, f"comes to over {MAX_VALUES} values; use fewer aliases, or split"),
        ("[" + "1," * MAX_VALUES + "]", f"comes to over {MAX_VALUES} values; split the file"),
        (shared(400, "x.io/{}: b"), f"comes to over {MAX_VALUES} values for its containers; split"),
        (shared(100, "gpushare.io/{}: 1"), "values for its containers; split the file"),
        (shared(8000, ""), f"comes to over {MAX_VALUES} values for its containers; split"),
        (claims(400), "values for its containers; split the file"),
        ("a: &a [*a]\n", "pod.yaml:1:8: *a stands within itself; write it out"),
        ("a: *b\n", "pod.yaml:1:4: *b has no &b before it"),
        ("[" * 65, f"pod.yaml:1:65: nested more than {MAX_DEPTH} deep; write it flatter"),
        ("é: é\na: \x07\n", "pod.yaml:2: has the character U+0007; take it out"),
        ("a: [1\n", "pod.yaml:2:1: not YAML: did not find expected ',' or ']'"),
        ('{"a": "\\ud800"}', "pod.yaml:1:10: not YAML: found invalid Unicode character"),
        ("a: \ud800\n", "pod.yaml:1: has the character U+D800; take it out"),
        ("a:\n\tb: 1\n", "not YAML: found character that cannot start any token; indent with "),
        ("a: {{ .Values.x }}\nb: ]\n", "pod.yaml:1:4: a template of Helm, not YAML yet; write "),
    ],
)
def test_an_unreadable_text_is_reported_with_its_position_and_the_fix(
    text: str, expected: str
) -> None:
    assert expected in refusal(text)


def work_for(text: str) -> int:
    """Return how many calls it takes to read and check a text."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        check(read("pod.yaml", text), strict=True)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    "shape",
    [
        lambda count: pod(env=",".join(f"{{name: N{n}, value: []}}" for n in range(count))),
        lambda count: pod(env=",".join(f"{{name: N{n}, text: a}}" for n in range(count))),
        lambda count: "kind: Pod\nspec:\n" + "- {containers: [{name: a, image: b}]}\n" * count,
    ],
    ids=["wrong values", "unknown keys", "pods in a list"],
)
def test_the_work_for_a_file_grows_as_the_file_does(shape: Callable[[int], str]) -> None:
    work_for(shape(1))  # what is imported or kept for later is not counted
    assert work_for(shape(800)) < 2.5 * work_for(shape(400))


def test_a_finding_names_some_containers_of_a_pod_and_counts_the_others() -> None:
    text = shared(60, "gpushare.io/container.none{}.memory: 1GiB")
    findings = check(read("pod.yaml", text), strict=True).findings
    assert max(len(str(finding)) for finding in findings) < 400
    assert any(finding.fix.endswith("c19 and 40 more") for finding in findings)


def test_depth_counts_the_values_of_aliases() -> None:
    deep = "".join(f"a{n}: &a{n} [[[[[[[[[[*a{n - 1}]]]]]]]]]]\n" for n in range(1, 9))
    assert f"nested more than {MAX_DEPTH} deep" in refusal(f"a0: &a0 [x]\n{deep}")


def pod(resources: str = "", annotations: str = "", env: str = "") -> str:
    return (
        f"kind: Pod\nmetadata: {{annotations: {{{annotations}}}}}\nspec:\n  containers:\n"
        f"    - name: c\n      image: i\n      env: [{env}]\n      resources: {{{resources}}}\n"
    )


def test_of_a_configmap_only_what_reads_as_a_plugins_file_is_one() -> None:
    plugin = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}"
    text = f"version: v1\\n{plugin}"
    file = manifest(f'kind: ConfigMap\ndata: {{note: "sharing: [", any: "{text}"}}\n')
    (document,) = file.documents
    assert document.plugin["sharing.timeSlicing.resources.replicas"].text == "10"
    assert set(document.data) == {"note", "any"}
