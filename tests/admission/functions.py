# SPDX-License-Identifier: Apache-2.0
"""The functions and types that Kubernetes adds to CEL.

Source: https://kubernetes.io/docs/reference/using-api/cel/ and Kubernetes' packages cel/library and
cel/mutation (staging/src/k8s.io/apiserver/pkg). Only those are here that the chart's policies use:
what uses another one does not compile. Those of strings are an extension of the library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

_MESSAGES = descriptor_pb2.FileDescriptorProto(
    name="kubernetes_cel.proto", syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name]
)
_STRING, _OPTIONAL = (
    descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
)


def _message(name: str, *fields: str) -> descriptor_pb2.DescriptorProto:
    made = _MESSAGES.message_type.add(name=name)
    for number, field in enumerate(fields, 1):
        made.field.add(name=field, number=number, type=_STRING, label=_OPTIONAL)
    return made


_message("JSONPatch", "op", "path", "from").field.add(
    name="value",
    number=4,
    type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
    label=_OPTIONAL,
    type_name=".google.protobuf.Value",
)
# In lowest terms, and "true" if Kubernetes keeps it as an int64. An API server's `==` ignores that;
# `compareTo` ignores it here, too.
_message("Quantity", "numerator", "denominator", "is_int64")

POOL = descriptor_pool.DescriptorPool()
POOL.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
POOL.Add(_MESSAGES)
Quantity = message_factory.GetMessageClass(POOL.FindMessageTypeByName("Quantity"))

_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}


def _parsed(text: str) -> Any:
    """Return a quantity as ParseQuantity of apimachinery/pkg/api/resource does.

    That keeps an int64 only if the text has few digits and, with a binary suffix, no fraction: to
    Kubernetes, 1.5Gi and 100Ti are no integers.

    Raises:
        ValueError: it is none.
    """
    found = re.fullmatch(
        r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+)|([a-zA-Z]{0,2}))", text, re.ASCII
    )
    if not found or not (found[2] or found[3]) or (found[5] or "") not in _SUFFIXES:
        raise ValueError(f"{text!r}: no quantity")
    whole, fraction = found[2].lstrip("0") or "0", found[3] or ""
    scale = Fraction(10) ** int(found[4]) if found[4] else _SUFFIXES[found[5]]
    value = Fraction(f"{found[1]}{whole}.{fraction}0") * scale
    if (found[5] or "").endswith("i"):
        power = scale.numerator.bit_length() - 1
        is_short = not fraction and len(whole) + power * 3 // 10 + 1 <= 15
    else:
        is_short = len(whole) + len(fraction) <= 18 and scale >= 10 ** len(fraction)
    return _quantity(value, is_int64=is_short)


def _quantity(value: Fraction, *, is_int64: bool) -> Any:
    is_int64 = is_int64 and -(2**63) <= value < 2**63
    return Quantity(
        numerator=str(value.numerator),
        denominator=str(value.denominator),
        is_int64=str(is_int64).lower(),
    )


def _value(quantity: Any) -> Fraction:
    return Fraction(int(quantity.numerator), int(quantity.denominator))


def _is_quantity(text: str) -> bool:
    try:
        _parsed(text)
    except ValueError:
        return False
    return True


def _integer(quantity: Any) -> int:
    if not _is_integer(quantity):
        raise ValueError(f"{_value(quantity)}: no integer of 64 bits")
    return int(_value(quantity))


def _is_integer(quantity: Any) -> bool:
    return bool(quantity.is_int64 == "true")


def _find(text: str, pattern: str) -> str:
    found = re.search(pattern, text, re.ASCII)
    return found[0] if found else ""


class Function(NamedTuple):
    """One overload of a function; of a method, the first parameter is its object.

    Types are those of CEL, as its type checker writes them.
    """

    name: str
    is_method: bool
    parameters: tuple[str, ...]
    returns: str
    call: Callable[..., Any]


def _method(name: str, parameters: tuple[str, ...], returns: str, call: Any) -> Function:
    return Function(name, True, parameters, returns, call)


FUNCTIONS = (
    Function("quantity", False, ("string",), "Quantity", _parsed),
    Function("isQuantity", False, ("string",), "bool", _is_quantity),
    _method("isInteger", ("Quantity",), "bool", _is_integer),
    _method("asInteger", ("Quantity",), "int", _integer),
    _method("asApproximateFloat", ("Quantity",), "double", lambda one: float(_value(one))),
    _method("isLessThan", ("Quantity",) * 2, "bool", lambda a, b: _value(a) < _value(b)),
    _method(
        "compareTo",
        ("Quantity",) * 2,
        "int",
        lambda a, b: (_value(a) > _value(b)) - (_value(a) < _value(b)),
    ),
    _method("find", ("string",) * 2, "string", _find),
    Function(
        "jsonpatch.escapeKey",
        False,
        ("string",),
        "string",
        lambda key: key.replace("~", "~0").replace("/", "~1"),
    ),
)


def plain(message: Any) -> Any:
    """Return a value of a JSON patch as JSON has it: CEL's integers are doubles there."""
    kind = message.WhichOneof("kind")
    if kind == "struct_value":
        return {key: plain(one) for key, one in message.struct_value.fields.items()}
    if kind == "list_value":
        return [plain(one) for one in message.list_value.values]
    if kind == "number_value":
        number = message.number_value
        return int(number) if math.isfinite(number) and number == int(number) else number
    return None if kind == "null_value" else getattr(message, kind)
