# SPDX-License-Identifier: Apache-2.0
"""The kubelet's interfaces: services, their methods, and the fields of the messages.

Source: kubernetes, staging/src/k8s.io/kubelet/pkg/apis: deviceplugin/v1beta1,
pluginregistration/v1, dra/v1, dra/v1beta1, dra-health/v1, dra-health/v1alpha1 (api.proto,
types.go). Names of fields are those of the .proto files.
"""

from __future__ import annotations

from typing import Final

from gpushare.kubernetes.kubelet.protobuf import (
    BOOL,
    INT32,
    INT64,
    STRING,
    Field,
    MessageType,
    Method,
    ServiceType,
    listed,
    mapped,
)

# Device plugins: deviceplugin/v1beta1.
DEVICE_PLUGIN_VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"  # in the folder of the plugins' sockets
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

_EMPTY: Final = MessageType("Empty", {})
_OPTIONS: Final = MessageType(
    "DevicePluginOptions",
    {
        "pre_start_required": Field(1, BOOL),
        "get_preferred_allocation_available": Field(2, BOOL),
    },
)
_NUMA_NODE: Final = MessageType("NUMANode", {"ID": Field(1, INT64)})
_TOPOLOGY: Final = MessageType("TopologyInfo", {"nodes": listed(1, _NUMA_NODE)})
DEVICE: Final = MessageType(
    "Device",
    {"ID": Field(1, STRING), "health": Field(2, STRING), "topology": Field(3, _TOPOLOGY)},
)
LIST_AND_WATCH_RESPONSE: Final = MessageType("ListAndWatchResponse", {"devices": listed(1, DEVICE)})
_MOUNT: Final = MessageType(
    "Mount",
    {
        "container_path": Field(1, STRING),
        "host_path": Field(2, STRING),
        "read_only": Field(3, BOOL),
    },
)
_DEVICE_SPEC: Final = MessageType(
    "DeviceSpec",
    {
        "container_path": Field(1, STRING),
        "host_path": Field(2, STRING),
        "permissions": Field(3, STRING),
    },
)
_CONTAINER_ALLOCATE_RESPONSE: Final = MessageType(
    "ContainerAllocateResponse",
    {
        "envs": mapped(1, STRING),
        "mounts": listed(2, _MOUNT),
        "devices": listed(3, _DEVICE_SPEC),
        "annotations": mapped(4, STRING),
        "cdi_devices": listed(5, MessageType("CDIDevice", {"name": Field(1, STRING)})),
    },
)
_CONTAINER_PREFERRED_REQUEST: Final = MessageType(
    "ContainerPreferredAllocationRequest",
    {
        "available_deviceIDs": listed(1, STRING),
        "must_include_deviceIDs": listed(2, STRING),
        "allocation_size": Field(3, INT32),
    },
)

DEVICE_REGISTRATION: Final = ServiceType(
    "v1beta1.Registration",
    {
        "Register": Method(
            MessageType(
                "RegisterRequest",
                {
                    "version": Field(1, STRING),
                    "endpoint": Field(2, STRING),
                    "resource_name": Field(3, STRING),
                    "options": Field(4, _OPTIONS),
                },
            ),
            _EMPTY,
        )
    },
)
DEVICE_PLUGIN: Final = ServiceType(
    "v1beta1.DevicePlugin",
    {
        "GetDevicePluginOptions": Method(_EMPTY, _OPTIONS),
        "ListAndWatch": Method(_EMPTY, LIST_AND_WATCH_RESPONSE, is_stream=True),
        "GetPreferredAllocation": Method(
            MessageType(
                "PreferredAllocationRequest",
                {"container_requests": listed(1, _CONTAINER_PREFERRED_REQUEST)},
            ),
            MessageType(
                "PreferredAllocationResponse",
                {
                    "container_responses": listed(
                        1,
                        MessageType(
                            "ContainerPreferredAllocationResponse",
                            {"deviceIDs": listed(1, STRING)},
                        ),
                    )
                },
            ),
        ),
        "Allocate": Method(
            MessageType(
                "AllocateRequest",
                {
                    "container_requests": listed(
                        1,
                        MessageType("ContainerAllocateRequest", {"devices_ids": listed(1, STRING)}),
                    )
                },
            ),
            MessageType(
                "AllocateResponse",
                {"container_responses": listed(1, _CONTAINER_ALLOCATE_RESPONSE)},
            ),
        ),
        "PreStartContainer": Method(
            MessageType("PreStartContainerRequest", {"devices_ids": listed(1, STRING)}),
            MessageType("PreStartContainerResponse", {}),
        ),
    },
)

# Plugins that the kubelet finds by their sockets: pluginregistration/v1.
PLUGIN_REGISTRATION: Final = ServiceType(
    "pluginregistration.Registration",
    {
        "GetInfo": Method(
            MessageType("InfoRequest", {}),
            MessageType(
                "PluginInfo",
                {
                    "type": Field(1, STRING),
                    "name": Field(2, STRING),
                    "endpoint": Field(3, STRING),
                    "supported_versions": listed(4, STRING),
                },
            ),
        ),
        "NotifyRegistrationStatus": Method(
            MessageType(
                "RegistrationStatus",
                {"plugin_registered": Field(1, BOOL), "error": Field(2, STRING)},
            ),
            MessageType("RegistrationStatusResponse", {}),
        ),
    },
)

# Dynamic resource allocation. The versions of an interface have the same messages, in packages of
# their own. A plugin names the services that it has by short names.
PLUGIN_TYPE: Final = "DRAPlugin"  # of PluginInfo

# HealthStatus.
DRA_UNKNOWN: Final = 0
DRA_HEALTHY: Final = 1
DRA_UNHEALTHY: Final = 2
MAX_MESSAGE_CHARACTERS: Final = 1024

_CLAIM: Final = MessageType(
    "Claim", {"namespace": Field(1, STRING), "uid": Field(2, STRING), "name": Field(3, STRING)}
)
_DEVICE: Final = MessageType(
    "Device",
    {
        "request_names": listed(1, STRING),
        "pool_name": Field(2, STRING),
        "device_name": Field(3, STRING),
        "cdi_device_ids": listed(4, STRING),
    },
)
_PREPARED: Final = MessageType(
    "NodePrepareResourceResponse", {"devices": listed(1, _DEVICE), "error": Field(2, STRING)}
)
_UNPREPARED: Final = MessageType("NodeUnprepareResourceResponse", {"error": Field(1, STRING)})
_METHODS: Final = {
    "NodePrepareResources": Method(
        MessageType("NodePrepareResourcesRequest", {"claims": listed(1, _CLAIM)}),
        MessageType("NodePrepareResourcesResponse", {"claims": mapped(1, _PREPARED)}),
    ),
    "NodeUnprepareResources": Method(
        MessageType("NodeUnprepareResourcesRequest", {"claims": listed(1, _CLAIM)}),
        MessageType("NodeUnprepareResourcesResponse", {"claims": mapped(1, _UNPREPARED)}),
    ),
}

_DEVICE_HEALTH: Final = MessageType(
    "DeviceHealth",
    {
        "device": Field(
            1,
            MessageType(
                "DeviceIdentifier",
                {"pool_name": Field(1, STRING), "device_name": Field(2, STRING)},
            ),
        ),
        "health": Field(2, INT32),
        "last_updated_time": Field(3, INT64),
        "health_check_timeout_seconds": Field(4, INT64),
        "message": Field(5, STRING),
    },
)
_HEALTH_METHODS: Final = {
    "NodeWatchResources": Method(
        MessageType("NodeWatchResourcesRequest", {}),
        MessageType("NodeWatchResourcesResponse", {"devices": listed(1, _DEVICE_HEALTH)}),
        is_stream=True,
    )
}

#: By the names that a plugin reports as its supported versions.
DRA_SERVICES: Final = {
    f"{version}.DRAPlugin": ServiceType(
        f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin", _METHODS
    )
    for version in ("v1", "v1beta1")
}
HEALTH_SERVICES: Final = {
    name: ServiceType(name, _HEALTH_METHODS)
    for name in ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
}
