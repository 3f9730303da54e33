# SPDX-License-Identifier: Apache-2.0
"""The limits and clients of a simulated MPS server, and the devices that it offers."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gpushare.simulator import DEVICE_ENV
from gpushare.simulator.device_file import Header, Profile

_UNITS: Final = {"M": 1 << 20, "G": 1 << 30}
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred, unix(7)


class MpsCommandError(ValueError):
    """A command that cannot be carried out."""


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the PID and the user of the other end."""
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(option)
    return pid, user


def size_of(text: str) -> int:
    """Return the bytes of an integer with a unit; MpsCommandError for anything else."""
    match = re.fullmatch(r"([0-9]+)([GM])B?", text.strip())
    if match is None:
        raise MpsCommandError(f"{text}: not an integer with G or M")
    return int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class MpsDevice:
    """A card."""

    uuid: str
    name: str
    pci: str
    multiprocessors: int

    @classmethod
    def of(cls, card: Profile) -> MpsDevice:
        """Return the card of a profile in the device file."""
        return cls(
            f"GPU-{uuid.UUID(bytes=bytes(card.uuid))}",
            card.name.decode(),
            f"00000000:{card.pci_bus:02X}:00.0",
            card.multiprocessors,
        )

    def share(self, percentage: float) -> int:
        """Return the multiprocessors of a percentage, in whole texture processing clusters.

        These have two multiprocessors each: an estimate from measurements, 25 % of 188 being 46 and
        10 % of them 18.
        """
        if percentage >= 100:
            return self.multiprocessors
        return max(int(self.multiprocessors * percentage / 100) // 2 * 2, 2)


@dataclass(frozen=True)
class MpsDevices:
    """The devices of a control daemon, in its order."""

    every: tuple[MpsDevice, ...]
    cuda_version: int

    @classmethod
    def visible(cls) -> MpsDevices:
        """Return those that CUDA_VISIBLE_DEVICES names, by UUID or by number; OSError."""
        content = Path(os.environ.get(DEVICE_ENV, "/dev/gpushare-sim"))
        with content.open("rb") as file:
            header = Header.from_buffer_copy(file.read(ctypes.sizeof(Header)))
            cards = [
                Profile.from_buffer_copy(file.read(ctypes.sizeof(Profile)))
                for _ in range(header.card_count)
            ]
        every = cls(tuple(map(MpsDevice.of, cards)), header.cuda_version)
        names = os.environ.get("CUDA_VISIBLE_DEVICES")
        return every if names is None else every.only(names.split(","))

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUIDs."""
        return tuple(device.uuid for device in self.every)

    def only(self, names: Iterable[str]) -> MpsDevices:
        """Return those of that name, without a word about names that none has."""
        devices = (self.named(name.strip()) for name in names)
        return replace(self, every=tuple(device for device in devices if device is not None))

    def named(self, name: str) -> MpsDevice | None:
        """Return a device by its number or its UUID; None for another name."""
        if name.isdecimal():
            return self.every[int(name)] if int(name) < len(self.every) else None
        return next((device for device in self.every if device.uuid == name), None)


@dataclass(frozen=True)
class MpsClient:
    """A client, with what its environment says."""

    number: int
    pid: int
    uid: int
    percentage: str = ""
    pinned: str = ""

    def described(self) -> tuple[str, str]:
        """Return its PID namespace and its command line, as far as they can be read."""
        process = Path("/proc", str(self.pid))
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            return str((process / "ns" / "pid").readlink()).strip("pid:[]"), command.strip()
        except OSError:
            return "?", "?"


@dataclass
class MpsLimits:
    """The limits of a server, or the defaults of the next one."""

    percentage: float = 100.0
    pinned: dict[str, str] = field(default_factory=dict)  # by device as it was named, last set last
    priority: int = 0

    def copy(self) -> MpsLimits:
        """Return a copy that changes by itself."""
        return MpsLimits(self.percentage, dict(self.pinned), self.priority)

    def set_percentage(self, words: list[str]) -> str:
        """Set the percentage if there is one in `words`; return it."""
        if words:
            value = float(words[0])
            if not 0 < value <= 100:
                raise MpsCommandError(f"{words[0]}: not between 0 and 100")
            self.percentage = value
        return str(self.percentage)

    def set_pinned(self, words: list[str]) -> str:
        """Set the memory limit of the device `words[0]` if there is one; return it."""
        device, *value = words
        if value:
            size_of(value[0])
            self.pinned.pop(device, None)
            self.pinned[device] = value[0]
        return self.pinned.get(device, "")

    def set_priority(self, words: list[str]) -> str:
        """Set the priority if there is one in `words`; return it."""
        if words:
            if words[0] not in ("0", "1"):
                raise MpsCommandError(f"{words[0]}: not 0 or 1")
            self.priority = int(words[0])
        return str(self.priority)

    def narrowed(self, client: MpsClient, devices: MpsDevices) -> MpsLimits:
        """Return what a client gets: its environment only lowers the limits."""
        allowed = self.copy()
        try:
            wanted = float(client.percentage)
        except ValueError:
            wanted = 100.0
        if 0 < wanted < allowed.percentage:
            allowed.percentage = wanted
        entries = [entry.partition("=") for entry in client.pinned.split(",") if entry]
        if any(devices.named(name.strip()) is None for name, _, _ in entries):
            allowed.pinned = {}  # one wrong entry: see simulator/README.md
            return allowed
        limits = self.pinned_bytes(devices)
        for name, _, value in entries:
            device = devices.named(name.strip())
            assert device is not None
            try:
                size = size_of(value)
            except MpsCommandError:
                continue
            if size < limits.get(device.uuid, size + 1):
                allowed.set_pinned([device.uuid, value.strip()])
        return allowed

    def pinned_bytes(self, devices: MpsDevices) -> dict[str, int]:
        """Return the memory limits by UUID; a device that does not exist has no effect."""
        return {
            device.uuid: size_of(size)
            for name, size in self.pinned.items()
            if (device := devices.named(name)) is not None
        }
