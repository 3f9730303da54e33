# SPDX-License-Identifier: Apache-2.0
"""The Container Runtime Interface, spoken to containerd as a kubelet does; see cri.proto."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_tools import protoc

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
        message = message_factory.GetMessageClass(called.input_type)()
        reply = message_factory.GetMessageClass(called.output_type)
        send = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda sent: sent.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        try:
            answer = send(json_format.ParseDict(request, message), timeout=ANSWER_SECONDS)
        except grpc.RpcError as error:
            raise CriError(f"{method}: {error.details()}") from error
        found: dict[str, Any] = json_format.MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return found


def _method(name: str) -> tuple[str, Any]:
    """Return the service that has the method, and the method."""
    for service in _interface().services_by_name.values():
        if name in service.methods_by_name:
            return service.full_name, service.methods_by_name[name]
    raise LookupError(f"{PROTO.name} has no method {name}")


@cache
def _interface() -> Any:
    """Compile cri.proto, to descriptors and no code; return its file's."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "cri.pb"
        status = protoc.main(
            ["protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={compiled}", PROTO.name]
        )
        assert status == 0, f"{PROTO} cannot be compiled"
        [file] = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindFileByName(file.name)
