# SPDX-License-Identifier: Apache-2.0
"""A tenant without a daemon: the pages and the socket that a library in a container finds."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare import abi

MIB = 1 << 20


@dataclass(frozen=True)
class Message:
    """A message of a process to the daemon."""

    type: int
    level: int
    pid: int
    text: str


class InterposedTenant:
    """The daemon's side of one tenant, in `directory`."""

    def __init__(self, directory: Path, uuids: Sequence[str], memory_bytes: int) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        grant = bytearray(abi.GRANT_BYTES)
        struct.pack_into("<QII", grant, 0, abi.ABI_MAGIC, abi.ABI_VERSION, len(uuids))
        for number, uuid in enumerate(uuids):
            offset = abi.grant_card_offset(number) + abi.GRANT_CARD_UUID
            grant[offset : offset + len(uuid)] = uuid.encode()
        self.grant.write_bytes(grant)
        status = bytearray(abi.STATUS_BYTES)
        abi.STATUS_HEADER.pack_into(status, 0, abi.ABI_MAGIC, abi.ABI_VERSION, 0, 0, 0)
        self.status.write_bytes(status)
        for number in range(len(uuids)):
            self.set_memory(memory_bytes, number)

    @property
    def grant(self) -> Path:
        return self.directory / abi.GRANT_NAME

    @property
    def status(self) -> Path:
        return self.directory / abi.STATUS_NAME

    def set_memory(self, memory_bytes: int, card: int = 0) -> None:
        self.set_u64(card, abi.GRANT_CARD_QUOTA_BYTES, memory_bytes)
        self.set_u64(card, abi.GRANT_CARD_LIMIT_BYTES, memory_bytes)

    def set_context_bytes(self, context_bytes: int, card: int = 0) -> None:
        self.set_u64(card, abi.GRANT_CARD_CONTEXT_BYTES, context_bytes)

    def set_first_uuid(self, uuid: str) -> None:
        """Write that it was made with this card, from which it has been moved."""
        self._set(self.grant, abi.GRANT_HEADER_FIRST_UUID, uuid.encode())

    def set_u64(self, card: int, field: int, value: int) -> None:
        self._set(self.grant, abi.grant_card_offset(card) + field, struct.pack("<Q", value))

    def set_u32(self, card: int, field: int, value: int) -> None:
        self._set(self.grant, abi.grant_card_offset(card) + field, struct.pack("<I", value))

    @staticmethod
    def _set(page: Path, offset: int, value: bytes) -> None:
        with page.open("r+b") as file:
            file.seek(offset)
            file.write(value)

    def processes(self) -> list[int]:
        """The pids that entered themselves and were not cleared."""
        return [record[0] for record in self._records() if record[0]]

    def sharing(self) -> list[int]:
        """The pids of those that have exported or imported memory, or are about to."""
        return [record[0] for record in self._records() if record[0] and record[1]]

    def _records(self) -> list[tuple[int, ...]]:
        text = self.status.read_bytes()
        high_water = abi.STATUS_HEADER.unpack_from(text, 0)[2]
        return [
            abi.PROCESS.unpack_from(text, abi.status_process_offset(number))
            for number in range(high_water)
        ]

    def used(self, card: int = 0) -> tuple[int, int]:
        """Return (bytes, contexts) of all processes; nothing may be pending when all is quiet."""
        claims = self._claims(card)
        assert all(pending & abi.PENDING_BYTES == 0 for _, pending, _ in claims)
        return sum(held for held, _, _ in claims), sum(detail[-1] for _, _, detail in claims)

    def kind(self, kind: int, card: int = 0) -> int:
        """Return the bytes of one kind (abi.KIND_...) of all processes."""
        return sum(detail[kind] for _, _, detail in self._claims(card))

    def shared(self, card: int = 0) -> tuple[int, int]:
        """Return (exported, imported) bytes of all processes."""
        text = self.status.read_bytes()
        base = abi.status_usage_offset(card)
        exported, imported = (
            sum(struct.unpack_from(f"<{abi.MAX_PROCESSES}Q", text, base + field))
            for field in (abi.USAGE_EXPORTED, abi.USAGE_IMPORTED)
        )
        return exported, imported

    def _claims(self, card: int) -> list[tuple[int, int, tuple[int, ...]]]:
        """Return (held, pending, detail) of each process number."""
        text = self.status.read_bytes()
        base = abi.status_usage_offset(card)
        held, pending = (
            struct.unpack_from(f"<{abi.MAX_PROCESSES}Q", text, base + field)
            for field in (abi.USAGE_HELD, abi.USAGE_PENDING)
        )
        details = text[base + abi.USAGE_DETAIL : base + abi.USAGE_BYTES]
        return list(zip(held, pending, abi.DETAIL.iter_unpack(details), strict=True))

    def listen(self) -> socket.socket:
        """Be the daemon, as far as the tenant's socket goes."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self.directory / abi.SOCKET_NAME))
        listener.listen(16)
        listener.settimeout(20)
        return listener


def receive(connection: socket.socket) -> Message | None:
    """The next message, None at the end of the connection."""
    packet = connection.recv(abi.MESSAGE_BYTES)
    if not packet:
        return None
    kind, level, pid, length = abi.MESSAGE_HEADER.unpack_from(packet)
    return Message(kind, level, pid, packet[abi.MESSAGE_TEXT : abi.MESSAGE_TEXT + length].decode())
