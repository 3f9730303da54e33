# SPDX-License-Identifier: Apache-2.0
"""gRPC services on a Unix socket, their streams, and calls. The only module that imports grpc."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc

from gpushare.errors import UserError
from gpushare.kubernetes.kubelet.protobuf import Method, ServiceType, Values, decode, encode

#: Calls and streams at a time. The kubelet keeps one or two streams open.
_THREADS: Final = 16
CALL_SECONDS: Final = 10.0
#: Of a Unix socket, without which some servers of gRPC refuse the path as a host name.
_CHANNEL: Final = (("grpc.default_authority", "localhost"),)


class CallFailed(UserError):
    """A call of another program's service failed; the text has its reason."""


#: A method's implementation. A unary one returns its reply, or raises UserError with a refusal.
#: One that streams yields its replies, until `Call.is_active` ends.
Implementation = Callable[[Values, "Call"], Any]


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
        self, path: Path, services: Sequence[tuple[ServiceType, Mapping[str, Implementation]]]
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


def call(path: Path, service: ServiceType, method: str, request: Values) -> Values:
    """Call a unary method of the service on the socket `path`; CallFailed."""
    described = service.methods[method]
    with grpc.insecure_channel(f"unix://{path}", options=_CHANNEL) as channel:
        send = channel.unary_unary(
            f"/{service.name}/{method}",
            request_serializer=partial(encode, described.request),
            response_deserializer=partial(decode, described.reply),
        )
        try:
            reply: Values = send(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise CallFailed(f"{method} on {path}: {error.details()}") from error
    return reply


def _handlers(
    service: ServiceType, implementations: Mapping[str, Implementation]
) -> grpc.GenericRpcHandler:
    missing = service.methods.keys() - implementations.keys()
    assert not missing, f"{service.name} lacks {sorted(missing)}"
    return grpc.method_handlers_generic_handler(
        service.name,
        {name: _handler(method, implementations[name]) for name, method in service.methods.items()},
    )


def _handler(method: Method, implementation: Implementation) -> grpc.RpcMethodHandler:
    make = (
        grpc.unary_stream_rpc_method_handler
        if method.is_stream
        else grpc.unary_unary_rpc_method_handler
    )
    return make(
        partial(_stream if method.is_stream else _unary, implementation),
        request_deserializer=partial(decode, method.request),
        response_serializer=partial(encode, method.reply),
    )


def _unary(implementation: Implementation, request: Values, context: grpc.ServicerContext) -> Any:
    try:
        return implementation(request, Call(context))
    except UserError as error:
        return context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def _stream(
    implementation: Implementation, request: Values, context: grpc.ServicerContext
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
