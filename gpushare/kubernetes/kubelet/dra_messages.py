# SPDX-License-Identifier: Apache-2.0
"""The kubelet's interfaces of dynamic resource allocation: services and their messages.

The versions of an interface have the same messages, in packages of their own. A plugin names the
services that it has by short names. Source: kubernetes, staging/src/k8s.io/kubelet/pkg/apis:
dra/v1, dra/v1beta1, dra-health/v1, dra-health/v1alpha1 (api.proto, types.go).
"""

from __future__ import annotations

from typing import Final

from gpushare.kubernetes.kubelet.protobuf import (
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

PLUGIN_TYPE: Final = "DRAPlugin"  # of PluginInfo

# HealthStatus.
UNKNOWN: Final = 0
HEALTHY: Final = 1
UNHEALTHY: Final = 2
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
