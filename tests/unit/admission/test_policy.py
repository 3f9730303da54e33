# SPDX-License-Identifier: Apache-2.0
"""Policies are applied as the API server's documentation says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from tests.admission import Rejected, mutate, violations
from tests.admission.expression import InvalidExpression

#: https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/
REPLICAS = yaml.safe_load("""
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: demo-policy.example.com}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments]}
  validations:
  - expression: object.spec.replicas <= 5
    message: at most 5
    messageExpression: "'at most 5, not ' + string(object.spec.replicas)"
""")
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d", "namespace": "n", "labels": {"team": "a"}},
    "spec": {"replicas": 6},
}
PATCH = yaml.safe_load("""
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicy
metadata: {name: patch.example.com}
spec:
  failurePolicy: Fail
  reinvocationPolicy: IfNeeded
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  mutations:
  - patchType: JSONPatch
    jsonPatch: {expression: "[]"}
""")
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c"}]},
}


def changed(policy: dict[str, Any], **fields: Any) -> dict[str, Any]:
    made = copy.deepcopy(policy)
    made["spec"] |= fields
    return made


def patching(*expressions: str, **fields: Any) -> dict[str, Any]:
    mutations = [
        {"patchType": "JSONPatch", "jsonPatch": {"expression": one}} for one in expressions
    ]
    return changed(PATCH, mutations=mutations, **fields)


def test_a_validation_that_is_false_is_a_violation_with_its_message() -> None:
    assert violations(REPLICAS, DEPLOYMENT) == ["at most 5, not 6"]
    assert violations(REPLICAS, DEPLOYMENT | {"spec": {"replicas": 5}}) == []


@pytest.mark.parametrize(
    "expression",
    ["string(object.missing)", "'a\\nb'", "' '", "'ab'.replace('', object.metadata.long)"],
)
def test_an_unusable_message_expression_gives_way_to_the_message(expression: str) -> None:
    validation = {"expression": "false", "message": "m", "messageExpression": expression}
    deployment = copy.deepcopy(DEPLOYMENT)
    deployment["metadata"]["long"] = "x" * 5000
    assert violations(changed(REPLICAS, validations=[validation]), deployment) == ["m"]


def test_a_field_that_is_missing_is_denied_unless_failures_are_ignored() -> None:
    without = DEPLOYMENT | {"spec": {}}
    [message] = violations(REPLICAS, without)
    assert "replicas" in message
    assert violations(changed(REPLICAS, failurePolicy="Ignore"), without) == []


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["true"], 1),
        (["true", "false"], 0),
        (["object.missing == 1", "false"], 0),  # one that is false decides
        (["object.missing == 1", "true"], 1),
        (["request.operation == 'CREATE' && oldObject == null"], 1),
    ],
)
def test_match_conditions(conditions: list[str], expected: int) -> None:
    made = [{"name": f"c{n}", "expression": one} for n, one in enumerate(conditions)]
    assert len(violations(changed(REPLICAS, matchConditions=made), DEPLOYMENT)) == expected


RULE = REPLICAS["spec"]["matchConstraints"]["resourceRules"][0]


@pytest.mark.parametrize(
    ("constraints", "expected"),
    [
        ({"resourceRules": []}, 0),
        ({"resourceRules": [RULE | {"resources": ["pods"]}]}, 0),
        ({"resourceRules": [RULE | {"resources": ["*"], "apiGroups": ["*"]}]}, 1),
        ({"resourceRules": [RULE | {"operations": ["UPDATE"]}]}, 0),
        ({"resourceRules": [RULE | {"resourceNames": ["e"]}]}, 0),
        ({"excludeResourceRules": [RULE | {"resourceNames": ["d"]}]}, 0),
        ({"excludeResourceRules": [RULE | {"resourceNames": ["e"]}]}, 1),
        ({"objectSelector": {"matchLabels": {"team": "a"}}}, 1),
        ({"objectSelector": {"matchLabels": {"team": "b"}}}, 0),
        (
            {
                "namespaceSelector": {
                    "matchExpressions": [
                        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["n"]}
                    ]
                }
            },
            0,
        ),
        (
            {"namespaceSelector": {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}},
            1,
        ),
    ],
)
def test_match_constraints(constraints: dict[str, Any], expected: int) -> None:
    made = REPLICAS["spec"]["matchConstraints"] | constraints
    namespace = {"metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "n"}}}
    found = violations(changed(REPLICAS, matchConstraints=made), DEPLOYMENT, namespace=namespace)
    assert len(found) == expected


def test_a_subresource_is_matched_only_where_it_is_named() -> None:
    assert violations(REPLICAS, DEPLOYMENT, subresource="scale") == []
    rule = RULE | {"resources": ["deployments/scale"]}
    made = changed(REPLICAS, matchConstraints={"resourceRules": [rule]})
    assert len(violations(made, DEPLOYMENT, subresource="scale")) == 1


def test_variables_are_in_order_and_matter_only_where_they_are_used() -> None:
    variables = [
        {"name": "wrong", "expression": "object.missing"},
        {"name": "replicas", "expression": "object.spec.replicas"},
        {"name": "more", "expression": "variables.replicas + 1"},
    ]
    validations = [{"expression": "variables.more == 8"}]
    made = changed(REPLICAS, variables=variables, validations=validations)
    assert violations(made, DEPLOYMENT) == ["failed: variables.more == 8"]
    used = changed(made, validations=[{"expression": "variables.wrong == 1"}])
    assert len(violations(used, DEPLOYMENT)) == 1
    backwards = changed(made, variables=variables[::-1])
    with pytest.raises(InvalidExpression, match="replicas"):
        violations(backwards, DEPLOYMENT)


def test_the_namespace_and_the_old_object_are_visible() -> None:
    expression = "namespaceObject.metadata.labels.a == 'b' && oldObject.spec.replicas == 1"
    made = changed(REPLICAS, validations=[{"expression": f"!({expression})"}])
    namespace = {"metadata": {"name": "n", "labels": {"a": "b"}}}
    old = DEPLOYMENT | {"spec": {"replicas": 1}}
    found = violations(made, DEPLOYMENT, namespace=namespace, operation="UPDATE", old_object=old)
    assert len(found) == 1


def test_parameters_exist_if_the_policy_has_a_kind_of_them() -> None:
    made = changed(REPLICAS, validations=[{"expression": "object.spec.replicas <= params.most"}])
    with pytest.raises(InvalidExpression, match="params"):
        violations(made, DEPLOYMENT)
    made["spec"]["paramKind"] = {"apiVersion": "example.com/v1", "kind": "Limit"}
    assert violations(made, DEPLOYMENT, params={"most": 6}) == []


@pytest.mark.parametrize("expression", ["1", "object.spec", "dyn(true)"])
def test_a_validation_must_be_a_boolean(expression: str) -> None:
    with pytest.raises(InvalidExpression, match="must evaluate to BOOL"):
        violations(changed(REPLICAS, validations=[{"expression": expression}]), DEPLOYMENT)


def test_patches_are_applied_in_order_and_the_object_is_left_alone() -> None:
    policy = patching(
        """[JSONPatch{op: "add", path: "/metadata/labels", value: {"n": "1"}},
            JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("a.b/c"),
                      value: "2"},
            JSONPatch{op: "copy", from: "/metadata/labels/n", path: "/metadata/labels/o"},
            JSONPatch{op: "add", path: "/spec/list", value: [1, 2]},
            JSONPatch{op: "add", path: "/spec/none", value: null},
            JSONPatch{op: "add", path: "/spec/containers/-", value: {"name": "d"}}]""",
        """[JSONPatch{op: "replace", path: "/metadata/name",
                      value: object.spec.containers[1].name}]""",
    )
    before = copy.deepcopy(POD)
    found = mutate(policy, POD)
    assert found["metadata"] == {"name": "d", "labels": {"n": "1", "a.b/c": "2", "o": "1"}}
    assert found["spec"] == {
        "containers": [{"name": "c"}, {"name": "d"}],
        "list": [1, 2],
        "none": None,
    }
    assert before == POD


def test_variables_see_what_the_mutation_before_has_changed() -> None:
    name = "[JSONPatch{op: 'replace', path: '/metadata/name', value: variables.name + 'x'}]"
    variables = [{"name": "name", "expression": "string(object.metadata.name)"}]
    assert mutate(patching(name, name, variables=variables), POD)["metadata"]["name"] == "pxx"


def test_a_patch_whose_test_fails_is_not_applied() -> None:
    policy = patching(
        """[JSONPatch{op: "remove", path: "/metadata/name"},
            JSONPatch{op: "test", path: "/metadata/uid", value: "u"}]"""
    )
    pod = POD | {"metadata": {"name": "p", "uid": "v"}}
    assert mutate(policy, pod) == pod


@pytest.mark.parametrize(
    "expression",
    [
        "[JSONPatch{op: 'add', path: '/metadata/annotations/a', value: 'b'}]",  # has no annotations
        "[JSONPatch{op: 'remove', path: '/spec/none'}]",
        "[JSONPatch{op: 'add', path: '/spec/none', value: object.spec.missing}]",
        "[JSONPatch{op: 'put', path: '/spec/none', value: 1}]",
    ],
)
def test_a_mutation_that_fails_rejects_the_request_or_changes_nothing(expression: str) -> None:
    with pytest.raises(Rejected):
        mutate(patching(expression), POD)
    first = "[JSONPatch{op: 'add', path: '/spec/first', value: 1}]"
    assert mutate(patching(first, expression, failurePolicy="Ignore"), POD) == POD


@pytest.mark.parametrize("expression", ["[]", "[1]", "JSONPatch{op: 'add'}", "object.patches"])
def test_a_mutation_must_be_a_list_of_patches(expression: str) -> None:
    with pytest.raises(InvalidExpression, match="must evaluate to"):
        mutate(patching(expression), POD)


def test_an_object_that_is_not_matched_is_not_mutated() -> None:
    expression = "[JSONPatch{op: 'add', path: '/spec/first', value: 1}]"
    assert mutate(patching(expression), POD, operation="UPDATE") == POD
    conditions = [{"name": "c", "expression": "has(object.spec.missing)"}]
    assert mutate(patching(expression, matchConditions=conditions), POD) == POD
