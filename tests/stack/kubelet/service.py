# SPDX-License-Identifier: Apache-2.0
"""Services of a kubelet's interfaces, served and called with the real protobuf runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tests.stack import protos

FOLDER = Path(__file__).parent
CALL_SECONDS = 20.0


class PluginError(RuntimeError):
    """What a plugin answers instead of a reply."""


class Service:
    """One service of a .proto file here."""

    def __init__(self, proto: str, name: str, package: str = "") -> None:
        self.described = protos.interface(FOLDER / f"{proto}.proto", package).services_by_name[name]

    def classes(self, method: str) -> tuple[Any, Any]:
        """Return the classes of its request and its reply."""
        found = self.described.methods_by_name[method]
        return protos.message_class(found.input_type), protos.message_class(found.output_type)

    def path(self, method: str) -> str:
        return f"/{self.described.full_name}/{method}"


class PluginClient:
    """A connection to the socket of a plugin; messages are as JSON has them."""

    def __init__(self, socket: Path) -> None:
        # As the kubelet's own client has it: without, grpcio sends an authority with a path.
        options = [("grpc.default_authority", "localhost")]
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=options)

    def call(self, service: Service, method: str, **request: Any) -> dict[str, Any]:
        """Return the reply; PluginError with the plugin's words."""
        kind, reply = service.classes(method)
        send = self._channel.unary_unary(
            service.path(method),
            request_serializer=kind.SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            return protos.as_json(send(protos.parse(request, kind), timeout=CALL_SECONDS))
        except grpc.RpcError as error:
            raise PluginError(f"{method}: {error.details()}") from error

    def stream(self, service: Service, method: str) -> Iterator[dict[str, Any]]:
        """Yield the replies of a stream until either side ends it."""
        kind, reply = service.classes(method)
        watch = self._channel.unary_stream(
            service.path(method),
            request_serializer=kind.SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            for each in watch(kind()):
                yield protos.as_json(each)
        except grpc.RpcError:
            return

    def close(self) -> None:
        self._channel.close()


def serve(
    socket: Path,
    service: Service,
    methods: Mapping[str, Callable[[dict[str, Any]], dict[str, Any] | None]],
) -> Any:
    """Serve methods; the reply of None is empty, and one with PluginError refuses the call."""

    def answer(method: str) -> Callable[[Any, Any], Any]:
        def run(request: Any, context: Any) -> Any:
            reply = None
            try:
                reply = methods[method](protos.as_json(request))
            except PluginError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return protos.parse(reply or {}, service.classes(method)[1])

        return run

    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                service.described.full_name,
                {
                    method: grpc.unary_unary_rpc_method_handler(
                        answer(method),
                        request_deserializer=service.classes(method)[0].FromString,
                        response_serializer=lambda reply: reply.SerializeToString(),
                    )
                    for method in methods
                },
            )
        ]
    )
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    return server
