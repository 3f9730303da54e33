# SPDX-License-Identifier: Apache-2.0
"""Evaluates an expression and counts what that costs, by cel-go's rules. Limits: cost.py."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from . import functions
from .expression import Expression

_LIST, _MAP, _MESSAGE = 10, 30, 40
_CHARACTER: Final = Fraction(1, 10)
_REGEX_CHARACTER: Final = Fraction(1, 4)


class NoValue(RuntimeError):
    """The expression has no value."""


class Absent:
    """The optional that has no value."""


class Present:
    """An optional that has one."""

    def __init__(self, value: Any) -> None:
        self.value = value


_ABSENT: Final = Absent()


class Meter:
    """Evaluates expressions and adds up their costs; `of_variables` has the values it may use."""

    def __init__(self, variable: Callable[[str], Any]) -> None:
        """Count from zero; `variable` returns the value of a variable of the policy, by name."""
        self.cost = 0
        self._variable = variable

    def evaluate(self, expression: Expression, values: Mapping[str, Any]) -> Any:
        """Return the value of an expression.

        Raises:
            NoValue: it has none. What it took to find out is counted.
        """
        return self._value(expression.checked.expr, dict(values))

    def _value(self, node: Any, scope: dict[str, Any]) -> Any:
        kind = node.WhichOneof("expr_kind")
        evaluate: Callable[[Any, dict[str, Any]], Any] = getattr(self, f"_{kind}")
        return evaluate(getattr(node, kind), scope)

    @staticmethod
    def _const_expr(constant: Any, _scope: dict[str, Any]) -> Any:
        kind = constant.WhichOneof("constant_kind")
        return None if kind == "null_value" else getattr(constant, kind)

    def _ident_expr(self, ident: Any, scope: dict[str, Any]) -> Any:
        self.cost += 1
        if ident.name.startswith("variables."):  # the type checker has made it one name
            self.cost += 1
            return self._variable(ident.name)
        if ident.name not in scope:
            raise NoValue(f"{ident.name}: no such variable")
        return scope[ident.name]

    def _select_expr(self, select: Any, scope: dict[str, Any]) -> Any:
        self.cost += 1
        value = self._value(select.operand, scope)
        if isinstance(value, (Absent, Present)):
            found = _optional_element(value, select.field)
            return isinstance(found, Present) if select.test_only else found
        if select.test_only:
            return _has(value, select.field)
        return _element(value, select.field)

    def _list_expr(self, literal: Any, scope: dict[str, Any]) -> Any:
        self.cost += _LIST
        optional = set(literal.optional_indices)
        found = []
        for number, one in enumerate(literal.elements):
            value = self._value(one, scope)
            if number not in optional:
                found.append(value)
            elif isinstance(value, Present):
                found.append(value.value)
        return found

    def _struct_expr(self, literal: Any, scope: dict[str, Any]) -> Any:
        self.cost += _MESSAGE if literal.message_name else _MAP
        found = {}
        for entry in literal.entries:
            key = entry.field_key or self._value(entry.map_key, scope)
            value = self._value(entry.value, scope)
            if not entry.optional_entry:
                found[key] = value
            elif isinstance(value, Present):
                found[key] = value.value
        return found

    def _comprehension_expr(self, fold: Any, scope: dict[str, Any]) -> Any:
        inner = dict(scope)
        items = self._value(fold.iter_range, scope)
        inner[fold.accu_var] = kept(lambda: self._value(fold.accu_init, scope))
        for item in items:
            inner[fold.iter_var] = item
            if not kept(lambda: self._value(fold.loop_condition, inner)):
                break
            inner[fold.accu_var] = kept(lambda: self._value(fold.loop_step, inner))
        result = dict(scope) | {fold.accu_var: inner[fold.accu_var]}
        if isinstance(result[fold.accu_var], NoValue):
            raise result[fold.accu_var]
        return self._value(fold.result, result)

    def _call_expr(self, call: Any, scope: dict[str, Any]) -> Any:
        name = call.function
        nodes = [*([call.target] if call.HasField("target") else []), *call.args]
        if name in {"_&&_", "_||_"}:
            self.cost += 1
            return self._logical(nodes, scope, decides=name == "_||_")
        if name == "_?_:_":
            self.cost += 1
            chosen = nodes[1] if self._value(nodes[0], scope) else nodes[2]
            return self._value(chosen, scope)
        if name == "orValue":
            self.cost += 1
            first = self._value(nodes[0], scope)
            return first.value if isinstance(first, Present) else self._value(nodes[1], scope)
        if name == "@not_strictly_false":
            self.cost += 1
            return kept(lambda: self._value(nodes[0], scope)) is not False
        if call.HasField("target") and _qualified(call) in _FUNCTIONS:
            name, nodes = _qualified(call), nodes[1:]
        values = [self._value(one, scope) for one in nodes]
        for value in values:
            if isinstance(value, NoValue):
                raise value
        result = _called(name, values)
        self.cost += _cost(name, values, result)
        return result

    def _kept_value(self, node: Any, scope: dict[str, Any]) -> Any:
        return kept(lambda: self._value(node, scope))

    def _logical(self, nodes: list[Any], scope: dict[str, Any], *, decides: bool) -> bool:
        """Return the value of `||` if `decides`, else of `&&`: an error yields to what decides."""
        failed: NoValue | None = None
        for node in nodes:
            value = self._kept_value(node, scope)
            if value is decides:
                return value is True
            if isinstance(value, NoValue):
                failed = failed or value
        if failed:
            raise failed
        return not decides


def kept(evaluate: Callable[[], Any]) -> Any:
    """Return the value, or the reason why there is none."""
    try:
        return evaluate()
    except NoValue as error:
        return error


def _qualified(call: Any) -> str:
    """Return `sets.contains` of a call that looks like a method of `sets`."""
    target = call.target
    if target.WhichOneof("expr_kind") == "ident_expr":
        return f"{target.ident_expr.name}.{call.function}"
    return ""


def _has(value: Any, field: str) -> bool:
    if isinstance(value, NoValue):
        raise value
    if not isinstance(value, dict):
        raise NoValue(f"{field}: not a map")
    return field in value


def _element(value: Any, key: Any) -> Any:
    if isinstance(value, NoValue):
        raise value
    try:
        if isinstance(value, list):
            if not 0 <= key < len(value):
                raise NoValue(f"{key}: no such element")
            return value[key]
        if isinstance(value, dict):
            return value[key]
    except (KeyError, TypeError):
        pass
    raise NoValue(f"{key}: no such key")


def _optional_element(value: Any, key: Any) -> Any:
    if isinstance(value, Absent):
        return value
    if isinstance(value, Present):
        value = value.value
    try:
        return Present(_element(value, key))
    except NoValue:
        return _ABSENT


def _size(value: Any) -> int:
    """Return the size that a value has in the costs of functions."""
    if isinstance(value, Present):
        return _size(value.value)
    return len(value) if isinstance(value, (str, bytes, list, dict)) else 1


def _kind(value: Any) -> type:
    return float if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value)


def equal(first: Any, second: Any) -> bool:
    if _kind(first) is not _kind(second):
        return False
    if isinstance(first, list):
        return len(first) == len(second) and all(map(equal, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            equal(value, second[key]) for key, value in first.items()
        )
    return bool(first == second)


def _in(value: Any, container: Any) -> bool:
    if isinstance(container, dict):
        return value in container
    return any(equal(value, one) for one in container)


def _integer(value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise NoValue(f"{value}: no integer") from None


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int)):
        return str(value)
    raise NoValue(f"{value}: no text")


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compared(first: Any, second: Any) -> bool:
        if _kind(first) is not _kind(second):
            raise NoValue("of different types")
        return compare(first, second)

    return compared


def _plus(first: Any, second: Any) -> Any:
    if _kind(first) is not _kind(second):
        raise NoValue("of different types")
    return first + second


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "!_": lambda value: not value,
    "_==_": equal,
    "_!=_": lambda first, second: not equal(first, second),
    "_<_": _ordered(lambda first, second: first < second),
    "_<=_": _ordered(lambda first, second: first <= second),
    "_>_": _ordered(lambda first, second: first > second),
    "_>=_": _ordered(lambda first, second: first >= second),
    "_+_": _plus,
    "_-_": lambda first, second: first - second,
    "_*_": lambda first, second: first * second,
    "_/_": lambda first, second: math.trunc(Fraction(first, second)),
    "_%_": lambda first, second: int(math.fmod(first, second)),
    "@in": _in,
    "_[_]": _element,
    "_?._": _optional_element,
    "_[?_]": _optional_element,
    "size": len,
    "contains": lambda text, part: part in text,
    "startsWith": lambda text, part: text.startswith(part),
    "endsWith": lambda text, part: text.endswith(part),
    "matches": lambda text, pattern: bool(re.search(pattern, text, re.ASCII)),
    "string": _written,
    "double": float,
    "int": _integer,
    "dyn": lambda value: value,
    **{
        name: (lambda *values, name=name: _of_kubernetes(name, values))
        for name in dict.fromkeys(one.name for one in functions.FUNCTIONS)
    },
}


def _of_kubernetes(name: str, values: tuple[Any, ...]) -> Any:
    for one in functions.FUNCTIONS:
        if one.name == name and len(one.parameters) == len(values):
            try:
                return one.call(*values)
            except ValueError as error:
                raise NoValue(str(error)) from None
    raise NoValue(f"{name}: no such function")


def _called(name: str, values: list[Any]) -> Any:
    if name not in _FUNCTIONS:
        raise NotImplementedError(f"{name}: its cost is not known here")
    try:
        return _FUNCTIONS[name](*values)
    except (AttributeError, TypeError):
        raise NoValue(f"{name}: not of these types") from None


def _times(size: int, factor: Fraction) -> int:
    return math.ceil(size * factor)


def _cost(name: str, values: list[Any], result: Any) -> int:
    """Return the cost of a call without that of its arguments."""
    sizes = [_size(value) for value in values]
    if name in {"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"}:
        return max(1, _times(min(sizes), _CHARACTER))
    if name == "_+_" and isinstance(values[0], str):
        return _times(sum(sizes), _CHARACTER)
    if name == "@in" and isinstance(values[1], list):
        return sizes[1]
    if name in {"startsWith", "endsWith"}:
        return _times(sizes[1], _CHARACTER)
    if name in {"matches", "find"}:
        return _times(1 + sizes[0], _CHARACTER) * _times(sizes[1], _REGEX_CHARACTER)
    if name == "contains":
        return _times(sizes[0], _CHARACTER) * _times(sizes[1], _CHARACTER)
    if name in {"replace", "split"}:
        return _times(sizes[0], 2 * _CHARACTER)
    if name == "join":
        return _times(_size(result), 2 * _CHARACTER)
    if name in {
        *("lowerAscii", "upperAscii", "substring", "trim", "quantity", "isQuantity", "string"),
        "jsonpatch.escapeKey",
    }:
        return max(1, _times(sizes[0], _CHARACTER))
    return 1
