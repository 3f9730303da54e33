# SPDX-License-Identifier: Apache-2.0
"""The kubelet's interfaces: their messages and services, described to protobuf.

Code that protoc generates would tie gpushare-node to one major version of protobuf, and the build
to protoc. These descriptors are made when the module is imported.

Source: kubernetes, staging/src/k8s.io/kubelet/pkg/apis: deviceplugin/v1beta1,
pluginregistration/v1, dra/v1, dra/v1beta1, dra-health/v1, dra-health/v1alpha1 (api.proto,
types.go). Names are those of the .proto files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: The fields of a message by name, as its class takes them.
Values: TypeAlias = dict[str, Any]
#: `string ID = 1` of a .proto file is `{1: "string ID"}`.
_Fields: TypeAlias = Mapping[int, str]


def _interface(
    package: str, messages: Mapping[str, _Fields], services: Mapping[str, Mapping[str, str]]
) -> Any:
    """Return the descriptors of the services, by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in messages.items():
        _add_fields(file.message_type.add(name=name), f".{package}", fields)
    for name, methods in services.items():
        service = file.service.add(name=name)
        for method, signature in methods.items():
            request, _, reply = signature.partition(" -> ")
            service.method.add(
                name=method,
                input_type=f".{package}.{request}",
                output_type=f".{package}.{reply.removeprefix('stream ')}",
                server_streaming=reply.startswith("stream "),
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindFileByName(file.name).services_by_name


def _add_fields(message: Any, scope: str, fields: _Fields) -> None:
    """Add fields to a message of the package `scope`.

    A map has string keys: `map<string, Claim> claims = 1` is `{1: "map Claim claims"}`.
    """
    for number, field in fields.items():
        *label, kind, name = field.split()
        if label == ["map"]:
            entry = message.nested_type.add(name=f"{name.title()}Entry")
            entry.options.map_entry = True
            _add_fields(entry, scope, {1: "string key", 2: f"{kind} value"})
            kind = f"{message.name}.{entry.name}"
        made = message.field.add(name=name, number=number)
        if label:
            made.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        if kind.islower():  # a scalar
            made.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        else:
            made.type_name = f"{scope}.{kind}"


# Device plugins: deviceplugin/v1beta1.
DEVICE_PLUGIN_VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"  # in the folder of the plugins' sockets
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

_DEVICE_PLUGINS: Final = _interface(
    "v1beta1",
    {
        "Empty": {},
        "DevicePluginOptions": {
            1: "bool pre_start_required",
            2: "bool get_preferred_allocation_available",
        },
        "RegisterRequest": {
            1: "string version",
            2: "string endpoint",
            3: "string resource_name",
            4: "DevicePluginOptions options",
        },
        "NUMANode": {1: "int64 ID"},
        "TopologyInfo": {1: "repeated NUMANode nodes"},
        "Device": {1: "string ID", 2: "string health", 3: "TopologyInfo topology"},
        "ListAndWatchResponse": {1: "repeated Device devices"},
        "ContainerPreferredAllocationRequest": {
            1: "repeated string available_deviceIDs",
            2: "repeated string must_include_deviceIDs",
            3: "int32 allocation_size",
        },
        "PreferredAllocationRequest": {
            1: "repeated ContainerPreferredAllocationRequest container_requests"
        },
        "ContainerPreferredAllocationResponse": {1: "repeated string deviceIDs"},
        "PreferredAllocationResponse": {
            1: "repeated ContainerPreferredAllocationResponse container_responses"
        },
        "ContainerAllocateRequest": {1: "repeated string devices_ids"},
        "AllocateRequest": {1: "repeated ContainerAllocateRequest container_requests"},
        "Mount": {1: "string container_path", 2: "string host_path", 3: "bool read_only"},
        "DeviceSpec": {1: "string container_path", 2: "string host_path", 3: "string permissions"},
        "CDIDevice": {1: "string name"},
        "ContainerAllocateResponse": {
            1: "map string envs",
            2: "repeated Mount mounts",
            3: "repeated DeviceSpec devices",
            4: "map string annotations",
            5: "repeated CDIDevice cdi_devices",
        },
        "AllocateResponse": {1: "repeated ContainerAllocateResponse container_responses"},
        "PreStartContainerRequest": {1: "repeated string devices_ids"},
        "PreStartContainerResponse": {},
    },
    {
        "Registration": {"Register": "RegisterRequest -> Empty"},
        "DevicePlugin": {
            "GetDevicePluginOptions": "Empty -> DevicePluginOptions",
            "ListAndWatch": "Empty -> stream ListAndWatchResponse",
            "GetPreferredAllocation": "PreferredAllocationRequest -> PreferredAllocationResponse",
            "Allocate": "AllocateRequest -> AllocateResponse",
            "PreStartContainer": "PreStartContainerRequest -> PreStartContainerResponse",
        },
    },
)
DEVICE_REGISTRATION: Final = _DEVICE_PLUGINS["Registration"]
DEVICE_PLUGIN: Final = _DEVICE_PLUGINS["DevicePlugin"]
ListAndWatchResponse: Final = message_factory.GetMessageClass(
    DEVICE_PLUGIN.methods_by_name["ListAndWatch"].output_type
)

# Plugins that the kubelet finds by their sockets: pluginregistration/v1.
PLUGIN_REGISTRATION: Final = _interface(
    "pluginregistration",
    {
        "InfoRequest": {},
        "PluginInfo": {
            1: "string type",
            2: "string name",
            3: "string endpoint",
            4: "repeated string supported_versions",
        },
        "RegistrationStatus": {1: "bool plugin_registered", 2: "string error"},
        "RegistrationStatusResponse": {},
    },
    {
        "Registration": {
            "GetInfo": "InfoRequest -> PluginInfo",
            "NotifyRegistrationStatus": "RegistrationStatus -> RegistrationStatusResponse",
        }
    },
)["Registration"]

# Dynamic resource allocation. The versions of an interface have the same messages, in packages of
# their own. A plugin names the services that it has by short names.
PLUGIN_TYPE: Final = "DRAPlugin"  # of PluginInfo

# The enum HealthStatus, an int32 on the wire.
DRA_UNKNOWN: Final = 0
DRA_HEALTHY: Final = 1
DRA_UNHEALTHY: Final = 2
MAX_MESSAGE_CHARACTERS: Final = 1024

#: By the names that a plugin reports as its supported versions.
DRA_SERVICES: Final = {
    f"{version}.DRAPlugin": _interface(
        f"k8s.io.kubelet.pkg.apis.dra.{version}",
        {
            "Claim": {1: "string namespace", 2: "string uid", 3: "string name"},
            "Device": {
                1: "repeated string request_names",
                2: "string pool_name",
                3: "string device_name",
                4: "repeated string cdi_device_ids",
            },
            "NodePrepareResourcesRequest": {1: "repeated Claim claims"},
            "NodePrepareResourceResponse": {1: "repeated Device devices", 2: "string error"},
            "NodePrepareResourcesResponse": {1: "map NodePrepareResourceResponse claims"},
            "NodeUnprepareResourcesRequest": {1: "repeated Claim claims"},
            "NodeUnprepareResourceResponse": {1: "string error"},
            "NodeUnprepareResourcesResponse": {1: "map NodeUnprepareResourceResponse claims"},
        },
        {
            "DRAPlugin": {
                name: f"{name}Request -> {name}Response"
                for name in ("NodePrepareResources", "NodeUnprepareResources")
            }
        },
    )["DRAPlugin"]
    for version in ("v1", "v1beta1")
}
HEALTH_SERVICES: Final = {
    f"{version}.DRAResourceHealth": _interface(
        version,
        {
            "NodeWatchResourcesRequest": {},
            "DeviceIdentifier": {1: "string pool_name", 2: "string device_name"},
            "DeviceHealth": {
                1: "DeviceIdentifier device",
                2: "int32 health",
                3: "int64 last_updated_time",
                4: "int64 health_check_timeout_seconds",
                5: "string message",
            },
            "NodeWatchResourcesResponse": {1: "repeated DeviceHealth devices"},
        },
        {
            "DRAResourceHealth": {
                "NodeWatchResources": (
                    "NodeWatchResourcesRequest -> stream NodeWatchResourcesResponse"
                )
            }
        },
    )["DRAResourceHealth"]
    for version in ("v1", "v1alpha1")
}
