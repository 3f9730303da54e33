# SPDX-License-Identifier: Apache-2.0
"""The functions that Kubernetes adds to CEL have the values of its documentation."""

from __future__ import annotations

from typing import Any

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

from tests.admission.expression import DYN, EvaluationError, Expression, InvalidExpression

OBJECT = {"name": "gpu", "keys": {"a.b/c": "1"}, "list": [1, "a"], "none": None}


def evaluate(text: str) -> Any:
    return Expression(text, {"object": DYN}).evaluate({"object": OBJECT})


@pytest.mark.parametrize(
    "text",
    [
        # https://kubernetes.io/docs/reference/using-api/cel/
        "quantity('500000G').isInteger()",
        "quantity('50k').asInteger() == 50000",
        "!quantity('9999999999999999999999999999999999999G').isInteger()",
        "quantity('50k').asApproximateFloat() == 50000.0",
        "quantity('50k').add(quantity('20k')) == quantity('70k')",
        "quantity('50k').sub(20000) == quantity('30k')",
        "quantity('125Mi').isLessThan(quantity('50M')) == false",
        "quantity('200M').compareTo(quantity('0.2G')) == 0",
        "quantity('150Mi').isGreaterThan(quantity('100Mi'))",
        "quantity('12e6') == quantity('12M') && sign(quantity('-1')) == -1",
        "quantity('1.5Gi').compareTo(quantity('1536Mi')) == 0",
        # as Kubernetes' own code evaluates them: an integer is what was written as one
        "!quantity('1.5Gi').isInteger() && quantity('1.5Gi').asApproximateFloat() == 1610612736.0",
        "quantity('1.5k').asInteger() == 1500 && !quantity('1.0').isInteger()",
        "quantity('9Ti').isInteger() && !quantity('10000Ti').isInteger()",
        "!quantity('100m').add(quantity('900m')).isInteger()",
        "isQuantity('1.3Gi') && !isQuantity('1.3GiB') && !isQuantity('') && !isQuantity('1 Gi')",
        "[1, 3].sum() == 4 && [1.0, 3.0].sum() == 4.0 && [].sum() == 0",
        "[3, 1].min() == 1 && [3, 1].max() == 3",
        "['a', 'b', 'b'].indexOf('b') == 1 && ['a', 'b', 'b'].lastIndexOf('b') == 2",
        "[1, 2].indexOf(3) == -1 && ['a', 'b'].isSorted() && ![2, 1].isSorted()",
        "'abc 123'.find('[0-9]+') == '123' && 'abc'.find('[0-9]+') == ''",
        "'123 abc 456'.findAll('[0-9]+') == ['123', '456']",
        "'123 abc 456'.findAll('[0-9]+', 1) == ['123']",
        "sets.contains([1, 2], [1]) && !sets.contains([1], [1, 2])",
        "sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1, 2], [2, 3])",
        "jsonpatch.escapeKey('a/b~c') == 'a~1b~0c'",
        # the language itself
        "object.?missing.field.orValue('x') == 'x'",
        "object.keys[?'a.b/c'].optMap(v, v + '0').orValue('') == '10'",
        "has(object.keys) && !has(object.missing)",
        "object.keys.exists(k, k.endsWith('/c')) && object.keys.all(k, object.keys[k] == '1')",
        "object.list.filter(x, type(x) == string).map(x, x + x) == ['aa']",
        "object.missing == 1 || true",
        "[?object.?missing].size() == 0",
        "'%s: %d'.format([object.name, 1]) == 'gpu: 1'",
    ],
)
def test_documented_expressions_are_true(text: str) -> None:
    assert evaluate(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "object.missing",
        "object.keys['b']",
        "object.list[2]",
        "object.none.field",
        "quantity('1GiB')",
        "quantity('9999999999999999999999999999999999999G').asInteger()",
        "quantity('1.5').asInteger()",
        "quantity('1.5Gi').asInteger()",
        "[].max()",
        "'ab'.substring(3)",
        "int(object.name)",
        "object.missing && true",
    ],
)
def test_what_has_no_value_is_an_error(text: str) -> None:
    with pytest.raises(EvaluationError):
        evaluate(text)


@pytest.mark.parametrize(
    "text",
    [
        "object.",
        "other",
        "1 + 'a'",
        "true ? [1] : ['a']",
        "'a'.reverse()",  # of a later version of the strings extension
        "cel.bind(x, 1, x)",  # not in Kubernetes
        "JSONPatch{verb: 'add'}",
        "quantity(1)",
        "quantity('1').sign()",  # a global function
        "['a', 1]",
        "[object.name, 'a']",  # of unknown and of known type
        "{'a': 1, 'b': 'c'}",
    ],
)
def test_what_does_not_compile_is_refused(text: str) -> None:
    with pytest.raises(InvalidExpression):
        evaluate(text)


STRINGS = [
    "'hello'.charAt(4)",
    "'hello'.charAt(5)",
    "'hello'.charAt(6)",
    "'hello mellow'.indexOf('ello')",
    "'hello mellow'.indexOf('ello', 2)",
    "'hello mellow'.indexOf('')",
    "'hello mellow'.lastIndexOf('ello')",
    "'hello mellow'.lastIndexOf('ello', 6)",
    "'hello'.lastIndexOf('jello')",
    "['a', 'b'].join()",
    "['a', 'b'].join(', ')",
    "'TacoCÆt'.lowerAscii()",
    "'tacoCæt'.upperAscii()",
    "'hello hello'.replace('he', 'we')",
    "'hello hello'.replace('he', 'we', 1)",
    "'hello hello'.replace('he', 'we', 0)",
    "'ab'.replace('', '-')",
    "'hello hello hello'.split(' ')",
    "'hello hello hello'.split(' ', 0)",
    "'hello hello hello'.split(' ', 1)",
    "'hello hello hello'.split(' ', 2)",
    "'hello'.split('')",
    "'hello'.split('', 3)",
    "''.split(',')",
    "'tacocat'.substring(4)",
    "'tacocat'.substring(0, 4)",
    "'tacocat'.substring(4, 3)",
    "'  \\ttrim\\n    '.trim()",
    "'%s is %d%%, %s'.format(['a', 3, [1, true]])",
]


@pytest.mark.parametrize("text", STRINGS)
def test_functions_of_strings_are_those_of_the_extension_of_cel(text: str) -> None:
    environment = cel.NewEnv(extensions=[ext_strings.ExtStrings(2)])
    expected = environment.compile(text).eval()
    if expected.type() == cel.Type.ERROR:
        with pytest.raises(EvaluationError):
            evaluate(text)
    else:
        assert evaluate(text) == expected.plain_value()
