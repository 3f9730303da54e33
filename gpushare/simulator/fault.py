# SPDX-License-Identifier: Apache-2.0
"""What a test, or a user who tries something, lets go wrong, from outside and while programs run.

None of these may be called by a process that is attached to the cards, as one that uses NVML is:
closing the file here would give its place away.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpushare.simulator.device import profile_of_instance
from gpushare.simulator.layout import (
    FAULTS_OFFSET,
    LAYOUT,
    MAGIC,
    VERSION_BYTES,
    Faults,
    Header,
    Profile,
)
from gpushare.simulator.profile import ProfileError, check_instances, load_profile


@contextmanager
def _opened(device: Path) -> Iterator[int]:
    """Yield a descriptor of a device file; ProfileError for another file, which stays as it is."""
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        header = _header(descriptor)
        if (header.magic, header.layout) != (MAGIC, LAYOUT):
            raise ProfileError(f"{device} is no simulated driver's device, or another version's")
        yield descriptor
    finally:
        os.close(descriptor)


def _header(descriptor: int) -> Header:
    size = ctypes.sizeof(Header)
    return Header.from_buffer_copy(os.pread(descriptor, size, 0).ljust(size, b"\0"))


def _offset(descriptor: int, card: int) -> int:
    count = _header(descriptor).card_count
    if not 0 <= card < count:
        raise ProfileError(f"card {card}: there are {count} simulated cards, from 0 on")
    return FAULTS_OFFSET + card * ctypes.sizeof(Faults)


def fail(device: Path, card: int = 0, **faults: int) -> None:
    """Let calls about a card go wrong from now on; without `faults`, none any more.

    `allocations` calls that take memory answer `error` (a CUresult, 2 is out of memory), after
    `after` that do not; with `process` only those of that pid, as it has it itself. Asked whether
    it was reached, an event answers `event_error`. NVML answers `nvml_error` (an nvmlReturn_t)
    after `nvml_delay_ms`, not at all while `nvml_hangs`, and what cannot be with `lies` (Lie). A
    card that is `lost` is lost to NVML and to CUDA. NVML lists it at `listed` - 1, 0 being where it
    is, and NOWHERE. TypeError for another name, OSError.

    Not to be called by a process that is attached to the cards, as one that uses NVML is: closing
    the file here would give its place away.
    """
    wanted = Faults(**faults)
    first = Faults.after.offset
    with _opened(device) as descriptor:
        offset = _offset(descriptor, card)
        before = Faults.from_buffer_copy(os.pread(descriptor, ctypes.sizeof(Faults), offset))
        wanted.xid, wanted.xids = before.xid, before.xids  # what has happened has
        # The count last: with it the others take effect.
        os.pwrite(descriptor, bytes(first), offset)
        os.pwrite(descriptor, bytes(wanted)[first:], offset + first)
        os.pwrite(descriptor, bytes(wanted)[:first], offset)


def raise_xid(device: Path, number: int, card: int = 0) -> None:
    """Let NVML tell an XID of a card to who has asked for them. OSError; see `fail`."""
    with _opened(device) as descriptor:
        offset = _offset(descriptor, card)
        faults = Faults.from_buffer_copy(os.pread(descriptor, ctypes.sizeof(Faults), offset))
        os.pwrite(descriptor, bytes(ctypes.c_uint32(number)), offset + Faults.xid.offset)
        count = ctypes.c_uint32(faults.xids + 1)
        os.pwrite(descriptor, bytes(count), offset + Faults.xids.offset)


def change_driver(device: Path, version: str = "", init_error: int = 0) -> None:
    """Let the driver be another version, "" the same, and nvmlInit answer an nvmlReturn_t.

    MISMATCH is what it answers between an upgrade's files and its module. ProfileError for what is
    no version, OSError; see `fail`.
    """
    if version and not (version.replace(".", "").isdigit() and len(version) < VERSION_BYTES):
        raise ProfileError(f"driver_version {version}: write e.g. 590.10.01")
    with _opened(device) as descriptor:
        if version:
            text = version.encode().ljust(VERSION_BYTES, b"\0")
            os.pwrite(descriptor, text, Header.driver_version.offset)
        error = bytes(ctypes.c_uint32(init_error))
        os.pwrite(descriptor, error, Header.nvml_init_error.offset)


def partition(device: Path, mig: Sequence[str], profile: str | Path = "h200") -> tuple[str, ...]:
    """Partition the cards, which are of `profile`, into the instances `mig`; () joins them again.

    Returns the instances' UUIDs. Programs that run keep what they have, which a real driver would
    not allow. ProfileError, OSError; see `fail`.
    """
    loaded = load_profile(profile)
    with _opened(device) as descriptor:
        cards = _header(descriptor).card_count
        check_instances(loaded, cards, mig)
        made = [
            profile_of_instance(loaded, card, index, name)
            for card in range(cards)
            for index, name in enumerate(mig)
        ]
        behind = ctypes.sizeof(Header) + cards * ctypes.sizeof(Profile)
        os.pwrite(descriptor, b"".join(map(bytes, made)), behind)
        count = bytes(ctypes.c_uint32(len(made)))
        os.pwrite(descriptor, count, Header.instance_count.offset)
    return tuple(f"MIG-{uuid.UUID(bytes=bytes(instance.uuid))}" for instance in made)
