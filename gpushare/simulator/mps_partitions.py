# SPDX-License-Identifier: Apache-2.0
"""The static partitions of the multiprocessors of the simulated cards.

A partition has whole chunks. A chunk is of 8 multiprocessors on cards of compute capability 9.0 and
higher, and of 4 (protocol 2) or 2 (protocol 3) on older ones from 8.0 on. (Multi-Process Service
manual, "When to Use MPS")
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpushare.simulator.mps_settings import MpsCommandError, MpsDevice

_ID_BYTES: Final = 27
_AMPERE: Final = 8
_HOPPER: Final = 9


@dataclass(frozen=True)
class MpsPartition:
    """A static partition of a card."""

    id: str
    name: str
    server: str
    device: MpsDevice
    chunks: int
    multiprocessors: int
    remainder: bool

    @property
    def variable(self) -> str:
        """The value of CUDA_MPS_SM_PARTITION."""
        return f"{self.device.uuid}/{self.id}"


class MpsPartitions:
    """The partitions of a control daemon, in the order in which they were created."""

    def __init__(self, protocol: int) -> None:
        self._protocol = protocol
        self._every: list[MpsPartition] = []
        self._next = 0

    def of(self, device: MpsDevice) -> list[MpsPartition]:
        """Return the partitions of a card."""
        return [partition for partition in self._every if partition.device == device]

    def chunk(self, device: MpsDevice) -> int:
        """Return how many multiprocessors a chunk has."""
        if device.compute_major >= _HOPPER:
            return 8
        return 4 if self._protocol == 2 else 2

    def total(self, device: MpsDevice) -> int:
        """Return the chunks of a card."""
        if device.compute_major < _AMPERE:
            return 0
        return device.multiprocessors // self.chunk(device)

    def free(self, device: MpsDevice) -> tuple[int, int]:
        """Return the chunks and the multiprocessors that no partition has."""
        taken = self.of(device)
        return (
            self.total(device) - sum(partition.chunks for partition in taken),
            device.multiprocessors - sum(partition.multiprocessors for partition in taken),
        )

    def add(
        self,
        device: MpsDevice,
        chunks: int,
        name: str = "",
        server: str = "",
        *,
        remainder: bool | None = None,
    ) -> MpsPartition:
        """Create a partition; MpsCommandError where chunks are lacking.

        With `remainder`, or without a word for the one that takes the last chunk, it has also the
        multiprocessors that are no whole chunk.
        """
        free, multiprocessors = self.free(device)
        if not 0 < chunks <= free:
            raise MpsCommandError(
                "Failed to fulfill the request: CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
            )
        size = chunks * self.chunk(device)
        whole = remainder if remainder is not None else chunks == free
        if whole:
            size += multiprocessors - free * self.chunk(device)
        # Base64 of which a part is a slash, as those of drivers can be.
        code = bytes((self._protocol, 0xFF, 0xC0 | self._next)).ljust(_ID_BYTES, b"\0")
        self._next += 1
        made = MpsPartition(
            base64.b64encode(code).decode(), name, server, device, chunks, size, whole
        )
        self._every.append(made)
        return made

    def remove(self, partition: MpsPartition) -> None:
        """Delete a partition."""
        self._every.remove(partition)

    def remove_server(self, server: str) -> None:
        """Delete the partitions of a server."""
        self._every = [partition for partition in self._every if partition.server != server]

    def named(self, device: MpsDevice, word: str, server: str = "") -> MpsPartition:
        """Return a card's partition by its ID, in protocol 3 by its name; MpsCommandError."""
        for partition in self.of(device):
            if word == (partition.name or partition.id) and partition.server == server:
                return partition
        raise MpsCommandError(f"Partition {word} not found")

    def chosen(self, variable: str, server: str) -> MpsPartition | None:
        """Return the one that CUDA_MPS_SM_PARTITION names; a UUID may be abbreviated."""
        uuid, _, word = variable.partition("/")
        for partition in self._every:
            if partition.id == word and partition.server == server:
                return partition if uuid and partition.device.uuid.startswith(uuid) else None
        return None

    def listed(self, devices: Iterable[MpsDevice]) -> list[MpsPartition]:
        """Return the partitions of cards, card by card."""
        return [partition for device in devices for partition in self.of(device)]
