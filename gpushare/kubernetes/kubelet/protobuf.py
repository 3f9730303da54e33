# SPDX-License-Identifier: Apache-2.0
"""Protocol Buffers (proto3): messages to bytes and back, driven by tables of fields.

A message is a dict. Generated code would tie gpushare-node to one version of the protobuf runtime,
and the kubelet's interfaces need strings, booleans, integers, messages, lists and maps only.
Source: protobuf.dev/programming-guides/encoding. tests/unit/kubernetes compares with the runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

Values: TypeAlias = dict[str, Any]

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_MOST_VARINT_BYTES: Final = 10


class ProtobufError(ValueError):
    """Bytes that are not a message."""


class Scalar(Enum):
    """The types of a field that is not a message."""

    STRING = "string"
    BOOL = "bool"
    INT32 = "int32"  # also enums
    INT64 = "int64"


STRING: Final = Scalar.STRING
BOOL: Final = Scalar.BOOL
INT32: Final = Scalar.INT32
INT64: Final = Scalar.INT64


@dataclass(frozen=True)
class Field:
    """A field: its number and type. A list is of strings or messages; a map has string keys."""

    number: int
    type: Scalar | MessageType
    is_list: bool = False
    is_map: bool = False


@dataclass(frozen=True)
class MessageType:
    """A message: its fields by name."""

    name: str
    fields: Mapping[str, Field]


@dataclass(frozen=True)
class Method:
    """A method of a service; with `is_stream`, it answers with a stream of replies."""

    request: MessageType
    reply: MessageType
    is_stream: bool = False


@dataclass(frozen=True)
class ServiceType:
    """A service: its full name and its methods."""

    name: str
    methods: Mapping[str, Method]


def listed(number: int, kind: Scalar | MessageType) -> Field:
    """Return the field `repeated kind = number`."""
    return Field(number, kind, is_list=True)


def mapped(number: int, kind: Scalar | MessageType) -> Field:
    """Return the field `map<string, kind> = number`."""
    return Field(number, kind, is_map=True)


def encode(message: MessageType, values: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message; a field that `values` lacks has its default."""
    unknown = values.keys() - message.fields.keys()
    if unknown:
        raise KeyError(f"{message.name} has no field {min(unknown)}")
    return b"".join(
        _encoded(field, values[name]) for name, field in message.fields.items() if name in values
    )


def decode(message: MessageType, data: bytes) -> Values:
    """Return the fields of a message, each with its value or default; ProtobufError.

    The default of a message is None. Unknown fields are skipped, as every reader of proto3 does.
    """
    numbers = {field.number: (name, field) for name, field in message.fields.items()}
    values: Values = {name: _default(field) for name, field in message.fields.items()}
    parts: dict[str, bytes] = {}  # of a message: its parts count as one
    for number, wire, value in _fields(data):
        name, field = numbers.get(number, ("", None))
        if field is None or wire != _wire(field.type):
            continue
        if field.is_map:
            key, held = _entry(field.type, value)
            values[name][key] = held
        elif field.is_list:
            values[name].append(_decoded(field.type, value))
        elif isinstance(field.type, MessageType):
            parts[name] = parts.get(name, b"") + value
            values[name] = decode(field.type, parts[name])
        else:
            values[name] = _decoded(field.type, value)
    return values


def _encoded(field: Field, value: Any) -> bytes:
    if field.is_map:
        entries = (
            _one(1, Scalar.STRING, key) + _one(2, field.type, held) for key, held in value.items()
        )
        return b"".join(_length_delimited(field.number, entry) for entry in entries)
    if field.is_list:
        return b"".join(_one(field.number, field.type, each) for each in value)
    if value is None or (isinstance(field.type, Scalar) and not value):
        return b""
    return _one(field.number, field.type, value)


def _one(number: int, kind: Scalar | MessageType, value: Any) -> bytes:
    if isinstance(kind, MessageType):
        return _length_delimited(number, encode(kind, value))
    if kind is Scalar.STRING:
        return _length_delimited(number, value.encode())
    return _varint(number << 3 | _VARINT) + _varint(int(value))


def _length_delimited(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative number has ten bytes
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _default(field: Field) -> Any:
    if field.is_map:
        return {}
    if field.is_list:
        return []
    if isinstance(field.type, MessageType):
        return None
    return {Scalar.STRING: "", Scalar.BOOL: False}.get(field.type, 0)


def _wire(kind: Scalar | MessageType) -> int:
    return _BYTES if isinstance(kind, MessageType) or kind is Scalar.STRING else _VARINT


def _decoded(kind: Scalar | MessageType, value: Any) -> Any:
    if isinstance(kind, MessageType):
        return decode(kind, value)
    if kind is Scalar.STRING:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ProtobufError(f"a string is not UTF-8: {error}") from error
    if kind is Scalar.BOOL:
        return value != 0
    bits = 32 if kind is Scalar.INT32 else 64
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _entry(kind: Scalar | MessageType, data: bytes) -> tuple[str, Any]:
    found = decode(MessageType("entry", {"key": Field(1, STRING), "value": Field(2, kind)}), data)
    if found["value"] is None and isinstance(kind, MessageType):
        return found["key"], decode(kind, b"")
    return found["key"], found["value"]


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield each field's number, wire type and value: an int for a varint, otherwise bytes."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ProtobufError(f"{number} is not a field number")
        if wire == _VARINT:
            value, at = _read_varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            length, at = _read_varint(data, at)
        elif wire in {_FIXED32, _FIXED64}:
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ProtobufError(f"field {number} has the wire type {wire}")
        if length > len(data) - at:
            raise ProtobufError(f"field {number} is cut off")
        yield number, wire, data[at : at + length]
        at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[at : at + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & (1 << 64) - 1, at + count + 1
    raise ProtobufError("a number is cut off, or has more than 64 bits")
