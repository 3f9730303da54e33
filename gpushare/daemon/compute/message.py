# SPDX-License-Identifier: Apache-2.0
"""What gpushared tells the scheduler, as scheduler/message.h lays it out.

tests/unit/scheduler/test_message_parity.py compiles the header and compares. Numbers are little
endian: gpushare runs where NVIDIA's driver does, on x86-64 and arm64.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.daemon.policy.share import Share

VERSION: Final = 1

HELLO: Final = 1
TENANT: Final = 2
REMOVE: Final = 3
COMPLETE: Final = 4

MESSAGE: Final = struct.Struct("<II24sII")  # type, version, key, card_count, reserved
SHARE: Final = struct.Struct("<48sIIII")  # uuid, permille, capped, online, priority
ANSWER: Final = struct.Struct("<IiiII")  # version, error, pid, tenants, slow


@dataclass(frozen=True)
class Answer:
    """What every message is answered with; `error` is an errno, 0 for done."""

    version: int
    error: int
    pid: int
    tenants: int
    slow: int


def hello() -> bytes:
    """Return the first message of a connection: all tenants are going to be named."""
    return MESSAGE.pack(HELLO, VERSION, b"", 0, 0)


def complete() -> bytes:
    """Return the message that all tenants have been named."""
    return MESSAGE.pack(COMPLETE, VERSION, b"", 0, 0)


def remove(key: str) -> bytes:
    """Return the message that tenant `key` is no more."""
    return MESSAGE.pack(REMOVE, VERSION, key.encode(), 0, 0)


def tenant(key: str, shares: Sequence[tuple[str, Share]]) -> bytes:
    """Return the message that `key` has `shares`: a card's UUID and its part of it, each."""
    packed = [
        SHARE.pack(uuid.encode(), share.permille, share.capped, share.online, share.priority)
        for uuid, share in shares
    ]
    return MESSAGE.pack(TENANT, VERSION, key.encode(), len(shares), 0) + b"".join(packed)


def answer(packet: bytes) -> Answer:
    """Return what the scheduler answered; ValueError where that is no answer."""
    if len(packet) != ANSWER.size:
        raise ValueError(f"an answer of {len(packet)} bytes, not {ANSWER.size}")
    return Answer(*ANSWER.unpack(packet))
