# SPDX-License-Identifier: Apache-2.0
"""Our protobuf, held against the real runtime: every message of the kubelet's interfaces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubernetes.kubelet import messages
from gpushare.kubernetes.kubelet.protobuf import (
    BOOL,
    INT32,
    INT64,
    STRING,
    Field,
    MessageType,
    ProtobufError,
    Scalar,
    decode,
    encode,
    listed,
)
from tests.stack import protos
from tests.stack.kubelet import dra
from tests.stack.kubelet.service import Service

#: The table of a service, and the service that protoc compiled.
SERVICES = (
    (messages.DEVICE_REGISTRATION, Service("deviceplugin", "Registration")),
    (messages.DEVICE_PLUGIN, Service("deviceplugin", "DevicePlugin")),
    (messages.PLUGIN_REGISTRATION, Service("pluginregistration", "Registration")),
    *((table, dra.DRA[name]) for name, table in messages.DRA_SERVICES.items()),
    *((table, dra.HEALTH[name]) for name, table in messages.HEALTH_SERVICES.items()),
)
MESSAGES = {
    kind.name: (kind, protos.message_class(descriptor))
    for table, service in SERVICES
    for name, method in table.methods.items()
    for kind, descriptor in (
        (method.request, service.described.methods_by_name[name].input_type),
        (method.reply, service.described.methods_by_name[name].output_type),
    )
}
SCALARS = {
    STRING: st.text(),
    BOOL: st.booleans(),
    INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    INT64: st.integers(-(1 << 63), (1 << 63) - 1),
}


def valued(kind: Scalar | MessageType) -> st.SearchStrategy[Any]:
    """Return values of a field's type; a message has each of its fields."""
    if isinstance(kind, Scalar):
        return SCALARS[kind]
    return st.fixed_dictionaries({name: held(field) for name, field in kind.fields.items()})


def held(field: Field) -> st.SearchStrategy[Any]:
    one = valued(field.type)
    if field.is_map:
        return st.dictionaries(st.text(), one, max_size=4)
    if field.is_list:
        return st.lists(one, max_size=4)
    return one if isinstance(field.type, Scalar) else st.none() | one


def without_none(values: Any) -> Any:
    """Return what JSON has of it: a message that is not there has no key."""
    if isinstance(values, dict):
        return {key: without_none(each) for key, each in values.items() if each is not None}
    return [without_none(each) for each in values] if isinstance(values, list) else values


@pytest.mark.parametrize(("table", "service"), SERVICES, ids=lambda each: getattr(each, "name", ""))
def test_the_tables_have_the_methods_and_fields_of_the_interfaces(
    table: Any, service: Service
) -> None:
    assert table.name == service.described.full_name
    assert table.methods.keys() == set(service.described.methods_by_name)
    for name, method in table.methods.items():
        found = service.described.methods_by_name[name]
        assert method.is_stream == found.server_streaming
        same_fields(method.request, found.input_type)
        same_fields(method.reply, found.output_type)


def same_fields(kind: MessageType, descriptor: Any) -> None:
    assert kind.name == descriptor.name
    assert {name: field.number for name, field in kind.fields.items()} == {
        field.name: field.number for field in descriptor.fields
    }
    for name, field in kind.fields.items():
        inner = descriptor.fields_by_name[name].message_type
        if field.is_map:
            inner = inner.fields_by_name["value"].message_type
        if isinstance(field.type, MessageType):
            same_fields(field.type, inner)
        else:
            assert inner is None


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
def test_both_read_what_the_other_wrote(name: str, data: st.DataObject) -> None:
    kind, real = MESSAGES[name]
    values = data.draw(valued(kind))
    theirs = protos.parse(without_none(values), real)
    assert real.FromString(encode(kind, values)) == theirs
    assert decode(kind, theirs.SerializeToString()) == values
    assert decode(kind, encode(kind, values)) == values


TEXTS = MessageType("Texts", {"one": Field(1, STRING), "all": listed(2, STRING)})


def test_what_a_newer_peer_adds_is_skipped() -> None:
    newer = MessageType(
        "Texts",
        {**TEXTS.fields, "count": Field(3, INT64), "more": Field(4, TEXTS)},
    )
    sent = {"one": "a", "all": ["b", ""], "count": -1, "more": {"one": "c"}}
    assert decode(TEXTS, encode(newer, sent)) == {"one": "a", "all": ["b", ""]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a\x05abc", "cut off"),
        (b"\x0a", "cut off"),
        (b"\x0a\x01\xff", "UTF-8"),
        (b"\x02\x00", "0 is not a field number"),
        (b"\x0b", "wire type 3"),
        (b"\x18" + b"\xff" * 10, "64 bits"),
        (b"\x1d\x00\x00", "cut off"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtobufError, match=reason):
        decode(TEXTS, data)


def test_a_field_that_the_message_does_not_have_is_our_mistake() -> None:
    with pytest.raises(KeyError, match="Texts has no field two"):
        encode(TEXTS, {"two": "x"})
