# SPDX-License-Identifier: Apache-2.0
"""gRPC services on a Unix socket, their streams, calls, and the kubelet's messages.

The only module that imports grpc and protobuf.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message_factory import GetMessageClass

from gpushare.errors import UserError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor


#: Calls and streams at a time. The kubelet keeps one or two streams open.
_THREADS: Final = 16
CALL_SECONDS: Final = 10.0
#: Of a Unix socket, without which some servers of gRPC refuse the path as a host name.
_CHANNEL: Final = (("grpc.default_authority", "localhost"),)


class CallFailed(UserError):
    """A call of another program's service failed; the text has its reason."""


#: A method's implementation takes the request, a message. A unary one returns the fields of its
#: reply, or raises UserError with a refusal. One that streams yields them, until `Call.is_active`
#: ends.
Implementation = Callable[[Any, "Call"], Any]


class Call:
    """One call by a client."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context

    @property
    def is_active(self) -> bool:
        """Whether the client still waits for replies."""
        return bool(self._context.is_active())

    def at_end(self, function: Callable[[], None]) -> None:
        """Call `function` when the client or the server ends the call."""
        if not self._context.add_callback(function):
            function()


class GrpcServer:
    """Serves `services` on the socket `path` until `close`, which removes the socket."""

    def __init__(
        self, path: Path, services: Sequence[tuple[ServiceDescriptor, Mapping[str, Implementation]]]
    ) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=path.stem)
        self._server = grpc.server(threads)
        self._server.add_generic_rpc_handlers(
            [_handlers(service, methods) for service, methods in services]
        )
        try:
            self._server.add_insecure_port(f"unix://{path}")
        except RuntimeError as error:
            raise UserError(f"cannot serve {path}: {error}") from error
        self._server.start()
        self._inode = inode(path)

    @property
    def is_reachable(self) -> bool:
        """Whether the socket is still in its folder; the kubelet removes it when it starts."""
        return self._inode is not None and inode(self._path) == self._inode

    def close(self) -> None:
        """End all calls, and remove the socket."""
        if self.is_reachable:
            self._path.unlink(missing_ok=True)
        self._server.stop(grace=None).wait()


def inode(path: Path) -> tuple[int, int] | None:
    """Return what tells a socket from one that replaced it; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def call(path: Path, service: ServiceDescriptor, name: str, request: Values) -> Any:
    """Return the reply of a unary method of the service on the socket `path`; CallFailed."""
    method = service.methods_by_name[name]
    with grpc.insecure_channel(f"unix://{path}", options=_CHANNEL) as channel:
        send = channel.unary_unary(
            f"/{service.full_name}/{name}",
            request_serializer=partial(_serialize, method.input_type),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        try:
            return send(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise CallFailed(f"{name} on {path}: {error.details()}") from error


def _serialize(kind: Descriptor, fields: Values) -> bytes:
    data: bytes = GetMessageClass(kind)(**fields).SerializeToString()
    return data


def _handlers(
    service: ServiceDescriptor, implementations: Mapping[str, Implementation]
) -> grpc.GenericRpcHandler:
    missing = set(service.methods_by_name) - implementations.keys()
    assert not missing, f"{service.full_name} lacks {sorted(missing)}"
    return grpc.method_handlers_generic_handler(
        service.full_name,
        {method.name: _handler(method, implementations[method.name]) for method in service.methods},
    )


def _handler(method: MethodDescriptor, implementation: Implementation) -> grpc.RpcMethodHandler:
    is_stream = method.server_streaming
    make = (
        grpc.unary_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
    )
    return make(
        partial(_stream if is_stream else _unary, implementation),
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=partial(_serialize, method.output_type),
    )


def _unary(implementation: Implementation, request: Any, context: grpc.ServicerContext) -> Any:
    try:
        return implementation(request, Call(context))
    except UserError as error:
        return context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def _stream(
    implementation: Implementation, request: Any, context: grpc.ServicerContext
) -> Iterator[Any]:
    yield from implementation(request, Call(context))


class Broadcast:
    """Sends each client the message that is current when it connects, and each later one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()  # guards what follows
        self._message: Values = {}
        self._version = 0  # 0: there is no message yet
        self._clients = 0
        self._quiet_since = 0.0
        self._closed = False

    def send(self, message: Values) -> None:
        """Send a message, unless it is the current one."""
        with self._changed:
            if message != self._message or not self._version:
                self._message = message
                self._version += 1
                self._changed.notify_all()

    @property
    def has_message(self) -> bool:
        """Whether there is anything to send."""
        return self._version > 0

    def quiet_seconds(self, since: float) -> float:
        """Return for how long no client has been connected; at most the time since `since`."""
        with self._changed:
            if self._clients:
                return 0.0
            return self._clock() - max(since, self._quiet_since)

    def stream(self, call: Call) -> Iterator[Values]:
        """Yield the messages until `close`, or until the client ends the call."""
        call.at_end(self._wake)
        with self._changed:
            self._clients += 1
        sent = 0
        try:
            while True:
                with self._changed:
                    while self._version == sent and call.is_active and not self._closed:
                        self._changed.wait()
                    if self._closed or not call.is_active:
                        return
                    sent, message = self._version, self._message
                yield message
        finally:
            with self._changed:
                self._clients -= 1
                self._quiet_since = self._clock()

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


# --- the kubelet's interfaces: their messages and services, described to protobuf ---
#
# Code that protoc generates would tie gpushare-node to one major version of protobuf, and the build
# to protoc. These descriptors are made when the module is imported.
#
# Source: kubernetes, staging/src/k8s.io/kubelet/pkg/apis: deviceplugin/v1beta1,
# pluginregistration/v1, dra/v1, dra/v1beta1, dra-health/v1, dra-health/v1alpha1 (api.proto,
# types.go). Names are those of the .proto files.

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

# What the kubelet has allocated to containers: podresources/v1, of which only List is called.
POD_RESOURCES: Final = _interface(
    "v1",
    {
        "ListPodResourcesRequest": {},
        "ListPodResourcesResponse": {1: "repeated PodResources pod_resources"},
        "PodResources": {3: "repeated ContainerResources containers"},
        "ContainerResources": {2: "repeated ContainerDevices devices"},
        "ContainerDevices": {1: "string resource_name", 2: "repeated string device_ids"},
    },
    {"PodResourcesLister": {"List": "ListPodResourcesRequest -> ListPodResourcesResponse"}},
)["PodResourcesLister"]

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
