# SPDX-License-Identifier: Apache-2.0
"""Prints, as one JSON object, what NVML says a driver and its cards can do. It changes nothing.

Each question stands alone: the answer is a text, NVML's own words where it refuses.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from ctypes import byref

import pynvml

CGROUP = b"/sys/fs/cgroup"
ENABLED = {0: "disabled", 1: "enabled"}


def limits(card: object) -> str:
    """What nvmlDeviceGetMemoryLimits_v1 reports of a cgroup without a limit."""
    found = pynvml.c_nvmlGetMemoryLimits_v1_t(CGROUP)
    pynvml.nvmlDeviceGetMemoryLimits_v1(card, found)
    return f"{found.softLimit} and {found.hardLimit} bytes for {CGROUP.decode()}"


def instances(card: object) -> str:
    """MIG: the mode now, the mode after a reset, and how many instances there may be."""
    now, pending = pynvml.nvmlDeviceGetMigMode(card)
    most = pynvml.nvmlDeviceGetMaxMigDeviceCount(card)
    made = sum(_is_there(card, number) for number in range(most))
    then = ENABLED.get(pending, pending)
    return f"{ENABLED.get(now, now)}, then {then}; {made} of at most {most} instances"


def _is_there(card: object, number: int) -> bool:
    try:
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, number)
    except pynvml.NVMLError:
        return False
    return True


def profiles(card: object) -> str:
    """MIG: each profile with its number, most and memory, and its placements or why it has none."""
    found = []
    for number in range(32):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card, number, 2)
        except pynvml.NVMLError as error:
            if number == 0:
                found.append(f"refused: {error}")
            continue
        name = info.name.decode() if isinstance(info.name, bytes) else info.name
        facts = f"{name} id {info.id} count {info.instanceCount}"
        found.append(f"{facts}, {info.memorySizeMB} MiB, at {_placements(card, info.id)}")
    return "; ".join(found)


def _placements(card: object, profile: int) -> str:
    room, count = (pynvml.c_nvmlGpuInstancePlacement_t * 64)(), ctypes.c_uint(64)
    try:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, room, byref(count))
    except pynvml.NVMLError as error:
        return f"refused: {error}"
    return " ".join(f"{one.start}:{one.size}" for one in room[: count.value])


def memory(card: object) -> str:
    """What version 1 and version 2 of the same question say of the card's memory."""
    first = pynvml.nvmlDeviceGetMemoryInfo(card)
    second = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    return (
        f"v1: total {first.total}, used {first.used}, free {first.free}; "
        f"v2: total {second.total}, used {second.used}, free {second.free}, "
        f"reserved {second.reserved}"
    )


def listed(card: object) -> str:
    """How many processes each list has, of compute, graphics and MPS."""
    lists = ("Compute", "Graphics", "MPSCompute")
    counts = [
        f"{name} {len(getattr(pynvml, f'nvmlDeviceGet{name}RunningProcesses')(card))}"
        for name in lists
    ]
    return ", ".join(counts)


def bar1(card: object) -> object:
    return pynvml.nvmlDeviceGetBAR1MemoryInfo(card).bar1Total


#: Answered by a function here, or by the one of pynvml that is named, where it has it.
QUESTIONS: dict[str, Callable[[object], object] | str] = {
    "UUID": "nvmlDeviceGetUUID",
    "MIG": instances,
    "MIG profiles": profiles,
    "memory limits on cgroups": limits,
    "memory": memory,
    "compute mode": "nvmlDeviceGetComputeMode",
    "persistence mode": "nvmlDeviceGetPersistenceMode",
    "addressing mode": "nvmlDeviceGetAddressingMode",
    "virtualisation mode": "nvmlDeviceGetVirtualizationMode",
    "accounting mode": "nvmlDeviceGetAccountingMode",
    "BAR1": bar1,
    "processes": listed,
}


def answers(card: object) -> Iterator[tuple[str, str]]:
    for name, question in QUESTIONS.items():
        try:
            call = getattr(pynvml, question) if isinstance(question, str) else question
            said = call(card)
        except (pynvml.NVMLError, AttributeError, TypeError) as error:
            said = f"refused: {error}"
        yield name, said.decode() if isinstance(said, bytes) else str(said)


def main() -> None:
    pynvml.nvmlInit()
    cards = [
        dict(answers(pynvml.nvmlDeviceGetHandleByIndex(number)))
        for number in range(pynvml.nvmlDeviceGetCount())
    ]
    sys.stdout.write(json.dumps({"cards": cards}) + "\n")


if __name__ == "__main__":
    main()
