# SPDX-License-Identifier: Apache-2.0
"""What is written into a device file: the cards and their instances, by their profile."""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpushare.simulator.layout import (
    FILE_BYTES,
    LAYOUT,
    MAGIC,
    PER_CARD,
    PROFILE_NARROW,
    PROFILE_WIDE,
    REAL_TIME_Q16,
    UNIT_BYTES,
    Header,
    Profile,
)

_UUID_NAMESPACE: Final = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562: OIDs


def card_uuid(seed: str, index: int) -> uuid.UUID:
    """Return the UUID of one card: the same for the same seed and index, always."""
    return uuid.uuid5(_UUID_NAMESPACE, f"{seed}/{index}")


def profile_of_card(profile: dict[str, Any], index: int) -> Profile:
    """Return one card as the device file has it."""
    numbers = {key: profile[key] for key in {*PROFILE_WIDE, *PROFILE_NARROW} - PER_CARD}
    card = Profile(
        name=str(profile["name"]).encode(),
        serial=f"{int(profile['serial']) + index:013d}".encode(),
        vbios=str(profile["vbios"]).encode(),
        pci_bus=0x18 + 8 * index,
        **numbers,
        **_place(profile, index),
    )
    card.uuid[:] = card_uuid(str(profile["uuid_seed"]), index).bytes
    return card


def _place(profile: dict[str, Any], index: int) -> dict[str, int]:
    """Return where one card is: alone below a host bridge of node 0, where nothing says another."""
    topology = profile.get("topology", {})
    place = {"numa_node": 0, "pci_bridge": index, "pci_switch": index}
    for key in place:
        listed = topology.get(key, [])
        if index < len(listed):
            place[key] = listed[index]
    peers = 0
    for group in topology.get("nvlink", []):
        if index in group:
            peers |= sum(1 << other for other in group if other != index)
    return {**place, "nvlink_peers": peers, "nvlinks": topology.get("nvlinks", 1) if peers else 0}


def instance_uuid(seed: str, card: int, index: int) -> uuid.UUID:
    """Return the UUID of one card's MIG instance: the same for the same arguments, always."""
    return uuid.uuid5(_UUID_NAMESPACE, f"{seed}/{card}/mig/{index}")


def profile_of_instance(profile: dict[str, Any], card: int, index: int, name: str) -> Profile:
    """Return one instance of a card: a card with its part of the memory and multiprocessors."""
    made = profile_of_card(profile, card)
    eighths = profile["mig"][name]["memory_eighths"]
    made.name = f"{profile['name']} MIG {name}".encode()
    made.memory_bytes = made.memory_bytes * eighths // 8 // UNIT_BYTES * UNIT_BYTES
    made.reserved_bytes = made.reserved_bytes * eighths // 8 // UNIT_BYTES * UNIT_BYTES
    made.multiprocessors = profile["mig"][name]["multiprocessors"]
    made.slices = int(name[0])
    made.parent = card + 1
    made.gpu_instance = index + 1  # 0 is the whole card's
    made.uuid[:] = instance_uuid(str(profile["uuid_seed"]), card, index).bytes
    return made


def content_of(
    profile: dict[str, Any],
    cards: int,
    versions: tuple[str, int],
    slow_motion: float,
    mig: Sequence[str],
) -> bytes:
    """Return the beginning of a device file: header and profiles."""
    driver, cuda = versions
    header = Header(
        magic=MAGIC,
        layout=LAYOUT,
        card_count=cards,
        cuda_version=cuda,
        slow_motion_q16=round(slow_motion * REAL_TIME_Q16),
        file_bytes=FILE_BYTES,
        driver_version=driver.encode(),
        instance_count=cards * len(mig),
    )
    entries = [profile_of_card(profile, index) for index in range(cards)]
    entries += [
        profile_of_instance(profile, card, index, name)
        for card in range(cards)
        for index, name in enumerate(mig)
    ]
    return bytes(header) + b"".join(map(bytes, entries))


def write(path: Path, content: bytes) -> None:
    """Make the file anew: processes that have the last one mapped keep it to themselves."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o666)  # as /dev/nvidia0: a container's user may be anyone
        os.write(descriptor, content)
        os.ftruncate(descriptor, FILE_BYTES)
    finally:
        os.close(descriptor)


def slow_motion(device: Path) -> float:
    """Return what the simulated cards multiply every duration by; ValueError for another file.

    Not to be called by a process that is attached to the cards: see `fail`.
    """
    with device.open("rb") as file:
        header = Header.from_buffer_copy(file.read(ctypes.sizeof(Header)))
    if header.magic != MAGIC:
        raise ValueError(f"{device} is no simulated driver's device")
    return float(header.slow_motion_q16 / REAL_TIME_Q16)
