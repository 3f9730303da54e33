# SPDX-License-Identifier: Apache-2.0
"""The limits and clients of a simulated MPS server, and the devices that it offers."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.simulator.device_file import Header, Profile
from gpushare.simulator.machine import DEVICE_ENV

_UNITS: Final = {"M": 1 << 20, "G": 1 << 30}
_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred, unix(7)


class MpsError(ValueError):
    """A command that cannot be carried out."""


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the PID and the user of the other end."""
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(option)
    return pid, user


def size_of(text: str) -> int:
    """Return the bytes of an integer with G or M; MpsError for anything else."""
    found = re.fullmatch(r"([0-9]+)([GM])B?", text.strip())
    if found is None:
        raise MpsError(f"{text}: not an integer with G or M")
    return int(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True)
class MpsDevices:
    """The devices of a control daemon, in its order."""

    uuids: tuple[str, ...]
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
        every = [f"GPU-{uuid.UUID(bytes=bytes(card.uuid))}" for card in cards]
        names = os.environ.get("CUDA_VISIBLE_DEVICES")
        if names is None:
            return cls(tuple(every), header.cuda_version)
        known = {**{str(index): card for index, card in enumerate(every)}}
        known |= {card: card for card in every}
        named = tuple(known[name] for name in names.split(",") if name in known)
        return cls(named, header.cuda_version)

    def named(self, name: str) -> str | None:
        """Return the UUID of a device by its number or its UUID; None for another name."""
        if name.isdecimal():
            return self.uuids[int(name)] if int(name) < len(self.uuids) else None
        return name if name in self.uuids else None


@dataclass(frozen=True)
class MpsClient:
    """A client, with the limits in its environment."""

    number: int
    pid: int
    uid: int
    percentage: str
    pinned: str

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

    def copy(self) -> MpsLimits:
        """Return a copy that changes by itself."""
        return MpsLimits(self.percentage, dict(self.pinned))

    def set_percentage(self, words: list[str]) -> str:
        """Set the percentage if there is one in `words`; return it."""
        if words:
            value = float(words[0])
            if not 0 < value <= 100:
                raise MpsError(f"{words[0]}: not between 0 and 100")
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
            allowed.pinned = {}  # one wrong entry: see mps_control
            return allowed
        given = self.pinned_bytes(devices)
        for name, _, value in entries:
            device = devices.named(name.strip())
            assert device is not None
            try:
                size = size_of(value)
            except MpsError:
                continue
            if size < given.get(device, size + 1):
                allowed.set_pinned([device, value.strip()])
        return allowed

    def pinned_bytes(self, devices: MpsDevices) -> dict[str, int]:
        """Return the memory limits by UUID; a device that does not exist has no effect."""
        found = ((devices.named(name), size_of(value)) for name, value in self.pinned.items())
        return {device: size for device, size in found if device is not None}
