# SPDX-License-Identifier: Apache-2.0
"""Injects faults into simulated cards, from outside and while programs run.

Do not call these functions from a process that is attached to the cards, such as one that uses
NVML: closing the file here would release the process's slot.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpushare.simulator.device_file import (
    FAULTS_OFFSET,
    LAYOUT,
    MAGIC,
    REAL_TIME_Q16,
    VERSION_BYTES,
    Faults,
    Header,
    Profile,
    instance_profile,
)
from gpushare.simulator.machine import ProfileError, check_instances, load_profile


@contextmanager
def _opened(device: Path) -> Iterator[int]:
    """Yield a descriptor of a device file; ProfileError for another file, which is not changed."""
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        header = _header(descriptor)
        if (header.magic, header.layout) != (MAGIC, LAYOUT):
            raise ProfileError(f"{device}: not a device file of this version's simulated driver")
        yield descriptor
    finally:
        os.close(descriptor)


def _header(descriptor: int) -> Header:
    size = ctypes.sizeof(Header)
    return Header.from_buffer_copy(os.pread(descriptor, size, 0).ljust(size, b"\0"))


def _offset(descriptor: int, card: int) -> int:
    count = _header(descriptor).card_count
    if not 0 <= card < count:
        raise ProfileError(f"card {card}: there are {count} simulated cards, numbered from 0")
    return FAULTS_OFFSET + card * ctypes.sizeof(Faults)


def fail(device: Path, card: int = 0, **faults: int) -> None:
    """Make calls for a card fail from now on; without `faults`, end all faults.

    After `after` successful ones, `allocations` allocation calls return `error` (a CUresult, 2 is
    out of memory); with `process`, only those of the process with that pid in its own namespace.
    Event queries return `event_error`. NVML returns `nvml_error` (an nvmlReturn_t) after
    `nvml_delay_ms`, does not respond while `nvml_hangs`, and reports impossible values with `lies`
    (FalseReading). A card that is `lost` is lost to NVML and to CUDA. NVML lists the card at
    `listed` - 1, 0 means at its place, and NOWHERE not at all. TypeError for another name, OSError.

    Do not call this from a process that is attached to the cards, such as one that uses NVML:
    closing the file here would release the process's slot.
    """
    wanted = Faults(**faults)
    first = Faults.after.offset
    with _opened(device) as descriptor:
        offset = _offset(descriptor, card)
        before = Faults.from_buffer_copy(os.pread(descriptor, ctypes.sizeof(Faults), offset))
        wanted.xid, wanted.xids = before.xid, before.xids  # past XIDs are kept
        # Write the count last: it makes the other values take effect.
        os.pwrite(descriptor, bytes(first), offset)
        os.pwrite(descriptor, bytes(wanted)[first:], offset + first)
        os.pwrite(descriptor, bytes(wanted)[:first], offset)


def raise_xid(device: Path, number: int, card: int = 0) -> None:
    """Make NVML report an XID of a card to its subscribers. OSError; see `fail`."""
    with _opened(device) as descriptor:
        offset = _offset(descriptor, card)
        faults = Faults.from_buffer_copy(os.pread(descriptor, ctypes.sizeof(Faults), offset))
        os.pwrite(descriptor, bytes(ctypes.c_uint32(number)), offset + Faults.xid.offset)
        count = ctypes.c_uint32(faults.xids + 1)
        os.pwrite(descriptor, bytes(count), offset + Faults.xids.offset)


def change_driver(device: Path, version: str = "", init_error: int = 0) -> None:
    """Change the driver's version ("" keeps it) and the nvmlReturn_t that nvmlInit returns.

    During an upgrade, nvmlInit returns MISMATCH. ProfileError for an invalid version, OSError; see
    `fail`.
    """
    if version and not (version.replace(".", "").isdigit() and len(version) < VERSION_BYTES):
        raise ProfileError(f"driver_version={version}: not a version. Use, for example, 590.10.01")
    with _opened(device) as descriptor:
        if version:
            text = version.encode().ljust(VERSION_BYTES, b"\0")
            os.pwrite(descriptor, text, Header.driver_version.offset)
        error = bytes(ctypes.c_uint32(init_error))
        os.pwrite(descriptor, error, Header.nvml_init_error.offset)


def partition(device: Path, mig: Sequence[str], profile: str | Path = "h200") -> tuple[str, ...]:
    """Partition the cards of `profile` into the instances `mig`; () removes the partitions.

    Return the instances' UUIDs. Running programs keep their memory, which a real driver would not
    allow. ProfileError, OSError; see `fail`.
    """
    loaded = load_profile(profile)
    with _opened(device) as descriptor:
        header = _header(descriptor)
        cards, time_scale = header.card_count, header.time_scale_q16 / REAL_TIME_Q16
        check_instances(loaded, cards, mig)
        made = [
            instance_profile(loaded, card, index, name, time_scale)
            for card in range(cards)
            for index, name in enumerate(mig)
        ]
        behind = ctypes.sizeof(Header) + cards * ctypes.sizeof(Profile)
        os.pwrite(descriptor, b"".join(map(bytes, made)), behind)
        count = bytes(ctypes.c_uint32(len(made)))
        os.pwrite(descriptor, count, Header.instance_count.offset)
    return tuple(f"MIG-{uuid.UUID(bytes=bytes(instance.uuid))}" for instance in made)
