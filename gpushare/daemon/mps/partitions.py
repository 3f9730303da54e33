# SPDX-License-Identifier: Apache-2.0
"""Static partitions of a card, each for one container.

A partition is created and deleted only while the card has no clients, so one that is given up is
kept for the next container that asks for its size, and deleted when that is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gpushare.daemon.mps.program import ClientRoute, MpsError, SmPartition

PARTITION_ENV: Final = "CUDA_MPS_SM_PARTITION"


@dataclass(frozen=True)
class PartitionCommands:
    """The commands of a protocol. `create` returns the ID of the new partition; MpsError."""

    read: Callable[[], Iterable[SmPartition]]
    create: Callable[[int], str]
    delete: Callable[[SmPartition], None]


class PartitionPool:
    """The partitions of a server, and which of them are taken."""

    def __init__(self, commands: PartitionCommands) -> None:
        self._commands = commands
        self._taken: set[str] = set()

    def take(self, chunks: int, before: ClientRoute | None = None) -> str:
        """Return the ID of a partition of that size; MpsError where it cannot be had.

        It is the one of the route `before`, if that is still there.
        """
        known = "" if before is None else before.env.get(PARTITION_ENV, "").partition("/")[2]
        same = [
            partition.id
            for partition in self._commands.read()
            if partition.chunks == chunks and partition.id not in self._taken
        ]
        if known in same:
            found = known
        else:
            unused = [partition.id for partition in self._unused() if partition.id in same]
            found = unused[0] if unused else self._created(chunks)
        self._taken.add(found)
        return found

    def give_up(self, partition_id: str) -> None:
        """Let another container have it, and delete those that nobody has, as far as possible."""
        self._taken.discard(partition_id)
        self._delete_unused()

    def _unused(self) -> list[SmPartition]:
        return [
            partition
            for partition in self._commands.read()
            if partition.id not in self._taken and not partition.in_use
        ]

    def _delete_unused(self) -> None:
        for partition in self._unused():
            try:
                self._commands.delete(partition)
            except MpsError:
                return  # the card has clients: it is kept

    def _created(self, chunks: int) -> str:
        self._delete_unused()
        found = self._commands.create(chunks)
        made = {partition.id: partition for partition in self._commands.read()}
        if found not in made or made[found].chunks != chunks:
            raise MpsError(f"the partition {found} of {chunks} chunks is not listed")
        return found
