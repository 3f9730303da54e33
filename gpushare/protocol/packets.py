# SPDX-License-Identifier: Apache-2.0
"""A packet and the object in it."""

from __future__ import annotations

import json
import math
from typing import Any, Final

MAX_REQUEST_BYTES: Final = 4096
MAX_REPLY_BYTES: Final = 65536


class ProtocolError(ValueError):
    """A packet that is not one JSON object of this protocol."""


def encode(message: dict[str, Any], limit: int = MAX_REPLY_BYTES) -> bytes:
    """Return the packet of `message`; ProtocolError when it is longer than `limit` bytes."""
    packet = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(packet) > limit:
        raise ProtocolError(f"a packet of {len(packet)} bytes is over the limit of {limit}")
    return packet


def decode(packet: bytes) -> dict[str, Any]:
    """Return the object in `packet`; duplicate keys, NaN and deep nesting are ProtocolErrors."""
    try:
        message = json.loads(
            packet,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON object: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError("not a JSON object")
    return message


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f'the key "{key}" is there twice')
        found[key] = value
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large a number")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number here")
