# SPDX-License-Identifier: Apache-2.0
"""The cost of expressions is counted by cel-go's rules, and the values are the library's."""

from __future__ import annotations

import pytest

from tests.admission import Costs, measure

from .test_expression import OBJECT
from .test_policy import DEPLOYMENT, POD, REPLICAS, changed, patching

POD_OF_VALUES = POD | OBJECT


def costs(expression: str) -> Costs:
    rule = REPLICAS["spec"]["matchConstraints"]["resourceRules"][0]
    pods = rule | {"apiGroups": [""], "resources": ["pods"]}
    policy = changed(
        REPLICAS,
        matchConstraints={"resourceRules": [pods]},
        variables=[{"name": "v", "expression": expression}],
        validations=[{"expression": "[variables.v] != []"}],
    )
    return measure(policy, POD_OF_VALUES)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1", 0),
        ("object.metadata.name", 3),  # an identifier, and two fields
        ("[1, 2]", 10),
        ("{'a': 1}", 30),
        ("'a' in object.keys", 3),  # a map: one
        ("'a' in ['a', 'b']", 12),  # a list: as many as it has members
        ("'abcdefghijk' == 'abcdefghijk'", 2),  # ten characters each
        ("'a' + 'b'", 1),
        (
            "'abcdefghi'.matches('^[a-z]+$')",
            2,
        ),  # one plus nine characters, times eight of the regex
        ("'abcdefghij'.contains('b')", 1),
        ("'abcdefghijk'.split('c')", 3),  # twice the length
        ("quantity('12345678901')", 2),
        ("quantity('1').isLessThan(quantity('2'))", 3),
        ("[1, 2].sum()", 14),
        ("sets.contains([1, 2], [1])", 25),
    ],
)
def test_costs_are_those_of_the_rules(expression: str, expected: int) -> None:
    assert costs(expression).expressions["variables.v"] == expected


def test_an_iteration_costs_what_is_evaluated_in_it() -> None:
    one, two = (costs(f"{each}.all(x, x > 0)").expressions["variables.v"] for each in ([1], [1, 2]))
    three = costs("[1, 2, 3].all(x, x > 0)").expressions["variables.v"]
    assert three - two == two - one > 2
    stopped = costs("[0, 2, 3].all(x, x > 0)").expressions["variables.v"]
    assert one < stopped < two  # the second member is not looked at


@pytest.mark.parametrize(
    "expression",
    [
        "object.missing",
        "object.?missing.x.orValue(1)",
        "object.keys[?'a.b/c'].optMap(v, v + '0').orValue('')",
        "has(object.keys.x) || object.missing == 1 || true",
        "object.missing == 1 && false",
        "object.list.map(x, [x]).map(x, x.size()).sum()",
        "object.list.exists(x, x == 'a') && object.list.exists_one(x, x == 1)",
        "object.keys.filter(k, k.startsWith('a')).map(k, {k: string(object.keys[k])})",
        "[1, 2, 3].filter(x, x % 2 == 1).map(x, x * 2 - 1)",
        "object.list.all(x, x == 1)",
        "[object.missing, object.name]",
        "quantity('1Gi').add(quantity('1')).sub(3).compareTo(quantity('1Gi'))",
        "'a-b'.replace('-', '+').upperAscii().split('+').join(',')",
        "object.list[1] + object.name",
        "object.list[0] + object.name",
        "true ? 'a' : string(object.missing)",
        "[?object.?missing, ?object.?none].size() + {?'a': object.?name}.size()",
    ],
)
def test_values_and_errors_are_those_of_the_library(expression: str) -> None:
    assert costs(expression).expressions["variables.v"] > 0  # compares them


def test_a_variable_counts_where_it_is_first_used_and_once() -> None:
    variables = [
        {"name": "unused", "expression": "[1, 2]"},
        {"name": "used", "expression": "object.spec.replicas"},
    ]
    validations = [{"expression": "variables.used + variables.used > 0"}]
    found = measure(changed(REPLICAS, variables=variables, validations=validations), DEPLOYMENT)
    assert found.expressions == {"variables.used": 3, "validations[0]": 6}
    assert (found.total, found.highest, found.conditions) == (9, 6, 0)


def test_match_conditions_have_a_budget_of_their_own_and_a_message_counts_if_it_is_used() -> None:
    conditions = [{"name": "c", "expression": "object.spec.replicas > 1"}]
    found = measure(changed(REPLICAS, matchConditions=conditions), DEPLOYMENT)
    assert found.conditions == found.expressions["matchConditions[0]"] == 4
    message = found.expressions["validations[0].messageExpression"]
    assert message > 0
    assert found.total == found.expressions["validations[0]"] + message
    fine = DEPLOYMENT | {"spec": {"replicas": 1}}
    assert measure(REPLICAS, fine).total == found.expressions["validations[0]"]


def test_each_mutation_has_the_whole_budget_of_a_policy() -> None:
    first = "[JSONPatch{op: 'add', path: '/spec/first', value: 'abc'}]"
    second = "[JSONPatch{op: 'add', path: '/spec/second', value: object.spec.first + 'd'}]"
    found = measure(patching(first, second), POD)
    assert found.expressions["mutations[0]"] == 50
    assert found.total == found.expressions["mutations[1]"] == 54
