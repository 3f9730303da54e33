# SPDX-License-Identifier: Apache-2.0
"""Interfaces of gRPC, compiled from .proto files to descriptors and no code, by protobuf's own."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_tools import protoc


@cache
def interface(proto: Path, package: str = "") -> Any:
    """Return the descriptor of a file; with `package`, as if that were its package."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "compiled"
        status = protoc.main(
            ["protoc", f"-I{proto.parent}", f"--descriptor_set_out={compiled}", proto.name]
        )
        assert status == 0, f"{proto} cannot be compiled"
        [file] = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    if package:
        _rename(file, package)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindFileByName(file.name)


def message_class(descriptor: Any) -> Any:
    """Return the class of a message."""
    return message_factory.GetMessageClass(descriptor)


def parse(values: dict[str, Any], kind: Any) -> Any:
    """Return a message of the fields as JSON has them."""
    return json_format.ParseDict(values, kind())


def as_json(message: Any) -> dict[str, Any]:
    """Return all fields of a message, as JSON has them."""
    found: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def _rename(file: Any, package: str) -> None:
    before, file.package = f".{file.package}.", package
    for message in file.message_type:
        for kind in (message, *message.nested_type):
            for field in kind.field:
                if field.type_name:
                    field.type_name = f".{package}." + field.type_name.removeprefix(before)
    for service in file.service:
        for method in service.method:
            method.input_type = f".{package}." + method.input_type.removeprefix(before)
            method.output_type = f".{package}." + method.output_type.removeprefix(before)
