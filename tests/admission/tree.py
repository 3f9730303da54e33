# SPDX-License-Identifier: Apache-2.0
"""The tree of a compiled expression, and what Kubernetes requires of it beyond its types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.stack import protos

_FILE = Path(__file__).with_name("checked.proto")


def checked(serialized: bytes) -> Any:
    """Return the message CheckedExpr that the library has serialized."""
    messages = protos.interface(_FILE).message_types_by_name
    wrapped = protos.message_class(messages["Wrapped"]).FromString(serialized)
    return protos.message_class(messages["CheckedExpr"]).FromString(wrapped.value)


def children(node: Any) -> list[Any]:
    """Return the expressions right below one."""
    kind = node.WhichOneof("expr_kind")
    if kind == "select_expr":
        return [node.select_expr.operand]
    if kind == "call_expr":
        call = node.call_expr
        return [*([call.target] if call.HasField("target") else []), *call.args]
    if kind == "list_expr":
        return list(node.list_expr.elements)
    if kind == "struct_expr":
        entries = node.struct_expr.entries
        keys = [one.map_key for one in entries if one.WhichOneof("key_kind") == "map_key"]
        return [*keys, *(one.value for one in entries)]
    if kind == "comprehension_expr":
        fold = node.comprehension_expr
        names = ("iter_range", "accu_init", "loop_condition", "loop_step", "result")
        return [getattr(fold, name) for name in names]
    return []


def mixed_literals(expression: Any) -> Iterator[str]:
    """Yield what is wrong with list and map literals whose members have different types.

    Source: cel-go's ValidateHomogeneousAggregateLiterals, which Kubernetes has since 1.29. A type
    that is not known differs from one that is. Arguments of `format` may be of several types.
    """
    yield from _mixed(expression.expr, expression.type_map)


def _mixed(node: Any, types: Any) -> Iterator[str]:
    kind = node.WhichOneof("expr_kind")
    if kind == "call_expr" and node.call_expr.function == "format":
        return
    if kind == "list_expr":
        optional = set(node.list_expr.optional_indices)
        members = [
            _type(types, one, optional=number in optional)
            for number, one in enumerate(node.list_expr.elements)
        ]
        if len(set(members)) > 1:
            yield "a list has members of different types"
    elif kind == "struct_expr" and not node.struct_expr.message_name:
        entries = node.struct_expr.entries
        if len({_type(types, one.map_key) for one in entries}) > 1:
            yield "a map has keys of different types"
        if len({_type(types, one.value, optional=one.optional_entry) for one in entries}) > 1:
            yield "a map has values of different types"
    for child in children(node):
        yield from _mixed(child, types)


def _type(types: Any, node: Any, *, optional: bool = False) -> bytes:
    if node.id not in types:
        return b""  # dyn
    found = types[node.id]
    if optional and found.WhichOneof("type_kind") == "abstract_type":
        found = found.abstract_type.parameter_types[0]
    serialized: bytes = found.SerializeToString(deterministic=True)
    return serialized
