# SPDX-License-Identifier: Apache-2.0
"""gRPC services on a Unix socket, their streams, and calls. The only module that imports grpc."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message_factory import GetMessageClass

from gpushare.errors import UserError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor

    from gpushare.kubernetes.kubelet.messages import Values

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
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def call(path: Path, service: ServiceDescriptor, name: str, request: Values) -> None:
    """Call a unary method of the service on the socket `path`; CallFailed."""
    method = service.methods_by_name[name]
    with grpc.insecure_channel(f"unix://{path}", options=_CHANNEL) as channel:
        send = channel.unary_unary(
            f"/{service.full_name}/{name}",
            request_serializer=partial(_serialize, method.input_type),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        try:
            send(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise CallFailed(f"{name} on {path}: {error.details()}") from error


def _serialize(kind: Descriptor, fields: Values) -> bytes:
    found: bytes = GetMessageClass(kind)(**fields).SerializeToString()
    return found


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
