# SPDX-License-Identifier: Apache-2.0
"""The descriptors of the kubelet's interfaces, held against those that protoc compiles."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from gpushare.kubernetes.kubelet import grpc_service
from tests.stack.kubelet import dra
from tests.stack.kubelet.service import Service


@pytest.mark.parametrize(
    ("service", "theirs"),
    [
        (grpc_service.DEVICE_REGISTRATION, Service("deviceplugin", "Registration")),
        (grpc_service.DEVICE_PLUGIN, Service("deviceplugin", "DevicePlugin")),
        (grpc_service.POD_RESOURCES, Service("podresources", "PodResourcesLister")),
        (grpc_service.PLUGIN_REGISTRATION, Service("pluginregistration", "Registration")),
        *((service, dra.DRA[name]) for name, service in grpc_service.DRA_SERVICES.items()),
        *((service, dra.HEALTH[name]) for name, service in grpc_service.HEALTH_SERVICES.items()),
    ],
    ids=lambda each: getattr(each, "full_name", ""),
)
def test_the_services_have_the_methods_and_fields_of_the_interfaces(
    service: Any, theirs: Service
) -> None:
    assert service.full_name == theirs.described.full_name
    assert methods(service) == methods(theirs.described)


def methods(service: Any) -> dict[str, Any]:
    return {
        method.name: (shape(method.input_type), shape(method.output_type), method.server_streaming)
        for method in service.methods
    }


def shape(message: Any) -> Any:
    """Return the name and the fields of a message, with those of the messages in it."""
    fields = [
        (
            field.name,
            field.number,
            field.is_repeated,
            # An enum is an int32 on the wire.
            FieldDescriptor.TYPE_INT32 if field.enum_type is not None else field.type,
            None if field.message_type is None else shape(field.message_type),
        )
        for field in message.fields
    ]
    return message.full_name, message.GetOptions().map_entry, fields
