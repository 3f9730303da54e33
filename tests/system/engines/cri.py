# SPDX-License-Identifier: Apache-2.0
"""The Container Runtime Interface, spoken to containerd as a kubelet does; see cri.proto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from tests.stack import protos

PROTO = Path(__file__).with_name("cri.proto")
#: A first start on a loaded machine; what a kubelet waits by default.
ANSWER_SECONDS = 120.0


class CriError(RuntimeError):
    """What containerd says when it does not do what was asked of it."""


class Cri:
    """A connection to the socket `address`; requests and replies are the messages as JSON has them.

    `cri.call("RemoveContainer", container_id=...)`
    """

    def __init__(self, address: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{address}")

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        """Return the reply; CriError where there is none."""
        service, called = _method(method)
        message, reply = map(protos.message_class, (called.input_type, called.output_type))
        send = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda sent: sent.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        try:
            answer = send(protos.parse(request, message), timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            raise CriError(f"{method}: {error.details()}") from error
        return protos.as_json(answer)


def _method(name: str) -> tuple[str, Any]:
    """Return the service that has the method, and the method."""
    for service in protos.interface(PROTO).services_by_name.values():
        if name in service.methods_by_name:
            return service.full_name, service.methods_by_name[name]
    raise LookupError(f"{PROTO.name} has no method {name}")
