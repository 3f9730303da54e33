# SPDX-License-Identifier: Apache-2.0
"""What an expression costs an API server, in the units of its limits.

The API server counts while it evaluates (cel-go's interpreter/runtimecost.go, with the additions of
apiserver/pkg/cel/library/cost.go) and gives up at its limits (apiserver/pkg/apis/cel/config.go).
This evaluates the same tree a second time and counts the same; where cel-go's planner saves a step
(constants, logical operators, `has()`), the step is counted, so the result is an upper bound. The
value is compared with that of the library, unless the library gives up first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from .expression import PATCHES, EvaluationError, Expression, TooManyIterations
from .meter import Meter, NoValue, equal, kept
from .policy import CompiledPolicy, Object, Request, compiled_policy, operations, patched

#: Of one expression, a variable's included.
PER_EXPRESSION: Final = 1_000_000
#: Of all expressions of a policy, for one request.
PER_POLICY: Final = 10_000_000
#: Of all match conditions of a policy, for one request.
MATCH_CONDITIONS: Final = 2_500_000


class Costs(NamedTuple):
    """The units that one request takes: of each expression, by a name for people, and in all.

    `total` is of the variables, validations and messages, or of the mutation that takes most;
    `conditions` is of the match conditions.
    """

    expressions: Mapping[str, int]
    conditions: int
    total: int

    @property
    def highest(self) -> int:
        """The cost of the expression that takes most."""
        return max(self.expressions.values(), default=0)


def measure(policy: Object, object_: Object, **request: Any) -> Costs:
    """Return what a policy costs for an object, which it must match.

    `request` is as for `mutate`. AssertionError: a value is not that of the library.
    """
    compiled = compiled_policy(policy)
    request = {"namespace": None, "operation": "CREATE", **request}
    current = copy.deepcopy(object_)
    given = Request(current, **request)
    assert given.is_matched(policy["spec"]["matchConstraints"])
    costs: dict[str, int] = {}
    values = compiled.given(given)
    for number, condition in enumerate(compiled.conditions):
        _measured(condition, values, {}, _no_variable, costs, f"matchConditions[{number}]")
    conditions = sum(costs.values())
    total = 0
    for number, mutation in enumerate(compiled.mutations):
        variables = _Variables(compiled, given)
        patch = variables.measured(mutation, f"mutations[{number}]")
        costs |= variables.costs
        total = max(total, sum(variables.costs.values()))
        current = patched(current, patch, mutation.text)
        given = Request(current, **request)
    variables = _Variables(compiled, given)
    for number, (validation, message, _) in enumerate(compiled.validations):
        name = f"validations[{number}]"
        if variables.kept(validation, name) is False and message:
            variables.kept(message, f"{name}.messageExpression")
    total = max(total, sum(variables.costs.values()))
    return Costs(costs | variables.costs, conditions, total)


def _no_variable(name: str) -> Any:
    raise NoValue(f"{name}: no variables here")


class _Variables:
    """The variables of a policy, each evaluated and measured where it is first used."""

    def __init__(self, compiled: CompiledPolicy, given: Request) -> None:
        self.costs: dict[str, int] = {}
        self._compiled = compiled
        self._values = compiled.given(given) | {"namespaceObject": given.values["namespaceObject"]}
        self._found: dict[str, Any] = {}

    def measured(self, expression: Expression, name: str) -> Any:
        """Return the value of an expression, whose cost is added under the name."""
        return _measured(expression, self._values, self._found, self._variable, self.costs, name)

    def kept(self, expression: Expression, name: str) -> Any:
        """Return the same, or the reason why there is no value."""
        return kept(lambda: self.measured(expression, name))

    def _variable(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = self.kept(self._compiled.variables[name], name)
        if isinstance(self._found[name], NoValue):
            raise self._found[name]
        return self._found[name]


def _measured(
    expression: Expression,
    values: Mapping[str, Any],
    found_before: Mapping[str, Any],
    variable: Callable[[str], Any],
    costs: dict[str, int],
    name: str,
) -> Any:
    meter = Meter(variable)
    found = kept(lambda: meter.evaluate(expression, values))
    costs[name] = meter.cost
    try:
        expected = expression.evaluate(
            {
                k: one
                for k, one in {**values, **found_before}.items()
                if not isinstance(one, NoValue)
            }
        )
    except TooManyIterations:
        assert not isinstance(found, NoValue), f"{name}: {found}"
        return found
    except EvaluationError:
        assert isinstance(found, NoValue), f"{name}: {found}, and the library has no value"
        raise found from None
    if expression.type == PATCHES:
        expected = operations(expected)
    assert not isinstance(found, NoValue), f"{name}: {found}, and the library has {expected}"
    assert equal(_unordered(found), _unordered(expected)), (
        f"{name}: {found}, and the library has {expected}"
    )
    return found


def _unordered(value: Any) -> Any:
    """Return a value with its lists sorted: a map has no order."""
    if isinstance(value, list):
        return sorted(map(_unordered, value), key=repr)
    if isinstance(value, dict):
        return {key: _unordered(value[key]) for key in sorted(value)}
    return value
