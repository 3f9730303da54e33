# SPDX-License-Identifier: Apache-2.0
"""The device file of the simulated driver: its layout and its content, from a profile.

The structures are those of simulator/device.h; a test compares the two.
"""

from __future__ import annotations

import ctypes
import enum
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import gpushare

MAGIC: Final = 0x31306D6973757067
LAYOUT: Final = 7
FILE_BYTES: Final = 128 << 20
CARDS_MOST: Final = 16
VERSION_BYTES: Final = 80
UNIT_BYTES: Final = 2 << 20
REAL_TIME_Q16: Final = 1 << 16


class Header(ctypes.Structure):
    """`struct sim_header` of simulator/device.h."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("layout", ctypes.c_uint32),
        ("card_count", ctypes.c_uint32),
        ("cuda_version", ctypes.c_uint32),
        ("time_scale_q16", ctypes.c_uint32),
        ("file_bytes", ctypes.c_uint64),
        ("driver_version", ctypes.c_char * VERSION_BYTES),
        ("instance_count", ctypes.c_uint32),
        ("nvml_init_error", ctypes.c_uint32),
        ("reserved", ctypes.c_uint64 * 3),
    )


PROFILE_WIDE: Final = (
    "memory_bytes",
    "reserved_bytes",
    "context_bytes",
    "bar1_bytes",
    "slice_ns",
    "switch_preempt_ns",
    "switch_drained_ns",
    "link_bytes_per_second",
    "memory_bytes_per_second",
    "checkpoint_bytes_per_second",
)
#: Those of PROFILE_WIDE that are the card's own durations.
CARD_DURATIONS: Final = ("slice_ns", "switch_preempt_ns", "switch_drained_ns")
PROFILE_NARROW: Final = (
    "compute_major",
    "compute_minor",
    "multiprocessors",
    "cores_per_multiprocessor",
    "threads_per_multiprocessor",
    "shared_bytes_per_multiprocessor",
    "shared_bytes_per_block_optin",
    "l2_bytes",
    "memory_bus_bits",
    "clock_sm_mhz",
    "clock_memory_mhz",
    "power_idle_milliwatts",
    "power_limit_milliwatts",
    "temperature_idle_celsius",
    "temperature_busy_celsius",
    "temperature_slowdown_celsius",
    "temperature_shutdown_celsius",
    "pci_bus",
    "pci_device_id",
    "pci_subsystem_id",
    "pcie_generation",
    "pcie_lanes",
    "nvml_architecture",
    "nvml_brand",
    "mig_capable",
)
#: Keys that a profile may omit: the driver then does nothing of the kind.
PROFILE_OPTIONAL: Final = ("launch_bytes", "unified")
_PROFILE_INSTANCE: Final = ("parent", "gpu_instance", "compute_instance", "slices")
_PROFILE_PLACE: Final = ("numa_node", "pci_bridge", "pci_switch", "nvlink_peers", "nvlinks")

# Keys that differ for each card and are not in the profile.
PER_CARD: Final = frozenset({"pci_bus"})


class Profile(ctypes.Structure):
    """`struct sim_profile` of simulator/device.h."""

    _fields_ = (
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_uint8 * 16),
        ("serial", ctypes.c_char * 16),
        ("vbios", ctypes.c_char * 32),
        *((name, ctypes.c_uint64) for name in PROFILE_WIDE),
        *(
            (name, ctypes.c_uint32)
            for name in (
                *PROFILE_NARROW,
                *_PROFILE_INSTANCE,
                *_PROFILE_PLACE,
                *PROFILE_OPTIONAL,
            )
        ),
        ("reserved", ctypes.c_uint32 * 6),
    )


class Faults(ctypes.Structure):
    """`struct sim_faults` of simulator/device.h."""

    _fields_ = (
        ("allocations", ctypes.c_uint32),
        ("after", ctypes.c_uint32),
        ("error", ctypes.c_uint32),
        ("process", ctypes.c_uint32),
        ("nvml_error", ctypes.c_uint32),
        ("nvml_delay_ms", ctypes.c_uint32),
        ("event_error", ctypes.c_uint32),
        ("nvml_hangs", ctypes.c_uint32),
        ("lost", ctypes.c_uint32),
        ("lies", ctypes.c_uint32),
        ("xid", ctypes.c_uint32),
        ("xids", ctypes.c_uint32),
        ("listed", ctypes.c_uint32),
        ("compute_mode", ctypes.c_uint32),
        ("persistence_off", ctypes.c_uint32),
        ("checkpoint_faults", ctypes.c_uint32),
        ("checkpoint_operation", ctypes.c_uint32),
        ("checkpoint_effect", ctypes.c_uint32),
        ("checkpoint_error", ctypes.c_uint32),
        ("encoder_percent", ctypes.c_uint32),
        ("decoder_percent", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 11),
    )


FAULTS_OFFSET: Final = -(-(ctypes.sizeof(Header) + CARDS_MOST * ctypes.sizeof(Profile)) // 64 * 64)


class FalseReading(enum.IntFlag):
    """`enum sim_lie` of simulator/device.h: impossible values that NVML reports."""

    BYTES = 1  # each process uses twice the memory of the card
    TWICE = 2  # a process is listed twice, with different sizes
    USED = 4  # no memory of the card is used
    TOTAL = 8  # the card has half of its memory
    UNSAID = 16  # not a false value: the memory of processes is not reported
    PID = 32  # a process that cannot exist is listed
    UUID = 64  # the card has another UUID


class CheckpointOperation(enum.IntEnum):
    """`enum checkpoint_operation` of simulator/checkpoint.h."""

    LOCK = 1
    CHECKPOINT = 2
    RESTORE = 3
    UNLOCK = 4


class CheckpointFault(enum.IntEnum):
    """`enum sim_checkpoint_fault` of simulator/device.h: the effect of an injected fault."""

    REFUSES = 0  # the operation fails, and the state does not change
    FAILS = 1  # the operation fails, and the state is FAILED
    HANGS = 2  # the operation does not return until the faults end
    CRASHES = 3  # the process gets SIGSEGV


#: `listed` for a card that NVML does not list.
NOWHERE: Final = 0xFFFFFFFF

#: nvmlReturn_t: the libraries and the kernel module have different versions.
MISMATCH: Final = 18


_UUID_NAMESPACE: Final = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562: OIDs


def card_uuid(seed: str, index: int) -> uuid.UUID:
    """Return the UUID of one card, which depends only on the seed and the index."""
    return uuid.uuid5(_UUID_NAMESPACE, f"{seed}/{index}")


def card_profile(profile: dict[str, Any], index: int, time_scale: float) -> Profile:
    """Return one card in the device file's form.

    The driver multiplies the durations of work; those of the card itself are multiplied here.
    """
    numbers = {key: profile[key] for key in {*PROFILE_WIDE, *PROFILE_NARROW} - PER_CARD}
    numbers |= {key: round(numbers[key] * time_scale) for key in CARD_DURATIONS}
    numbers |= {key: profile.get(key, 0) for key in PROFILE_OPTIONAL}
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
    """Return the location of a card; by default, alone below a host bridge of NUMA node 0."""
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
    """Return the UUID of a card's MIG instance, which depends only on the arguments."""
    return uuid.uuid5(_UUID_NAMESPACE, f"{seed}/{card}/mig/{index}")


def instance_profiles(
    profile: dict[str, Any], card: int, mig: Sequence[str], time_scale: float
) -> list[Profile]:
    """Return the instances `mig` of a card, in that order."""
    return [
        _instance_profile(profile, card, index, name, time_scale) for index, name in enumerate(mig)
    ]


def check_places(profile: dict[str, Any], mig: Sequence[str]) -> None:
    """Put each instance at its kind's first place that is free by then.

    So an instance may find no place because of where an earlier one went; ValueError.
    """
    taken: set[int] = set()
    for name in mig:
        kind = profile["mig"][name]
        ranges = (range(start, start + kind["memory_eighths"]) for start in kind["starts"])
        free = next((place for place in ranges if taken.isdisjoint(place)), None)
        if free is None or mig.count(name) > kind["count"]:
            raise ValueError(f"mig={' '.join(mig)}: there is no place for {name}")
        taken.update(free)


def _instance_profile(
    profile: dict[str, Any], card: int, index: int, name: str, time_scale: float
) -> Profile:
    """Return an instance of a card: a card with a part of the memory and multiprocessors."""
    instance = card_profile(profile, card, time_scale)
    eighths = profile["mig"][name]["memory_eighths"]
    instance.name = f"{profile['name']} MIG {name}".encode()
    instance.memory_bytes = instance.memory_bytes * eighths // 8 // UNIT_BYTES * UNIT_BYTES
    instance.reserved_bytes = instance.reserved_bytes * eighths // 8 // UNIT_BYTES * UNIT_BYTES
    instance.multiprocessors = profile["mig"][name]["multiprocessors"]
    instance.slices = int(name[0])
    instance.parent = card + 1
    instance.gpu_instance = index + 1  # 0 is the whole card's
    instance.uuid[:] = instance_uuid(str(profile["uuid_seed"]), card, index).bytes
    return instance


def device_content(
    profile: dict[str, Any],
    cards: int,
    versions: tuple[str, int],
    time_scale: float,
    mig: Sequence[str],
) -> bytes:
    """Return the start of a device file: the header and the profiles."""
    driver, cuda = versions
    header = Header(
        magic=MAGIC,
        layout=LAYOUT,
        card_count=cards,
        cuda_version=cuda,
        time_scale_q16=round(time_scale * REAL_TIME_Q16),
        file_bytes=FILE_BYTES,
        driver_version=driver.encode(),
        instance_count=cards * len(mig),
    )
    entries = [card_profile(profile, index, time_scale) for index in range(cards)]
    for card in range(cards):
        entries += instance_profiles(profile, card, mig, time_scale)
    return bytes(header) + b"".join(map(bytes, entries))


def write_device(path: Path, content: bytes) -> None:
    """Replace the file; processes that have mapped the old one keep it."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o666)  # as /dev/nvidia0: any user of a container may open it
        os.write(descriptor, content)
        os.ftruncate(descriptor, FILE_BYTES)
    finally:
        os.close(descriptor)


def time_scale(device: Path) -> float:
    """Return the factor for every duration of the simulated cards; ValueError for another file.

    Do not call this from a process that is attached to the cards: see `fail`.
    """
    with device.open("rb") as file:
        header = Header.from_buffer_copy(file.read(ctypes.sizeof(Header)))
    if header.magic != MAGIC:
        raise ValueError(f"{device} is not the device file of a simulated driver")
    return float(header.time_scale_q16 / REAL_TIME_Q16)


# --- profiles of simulated cards, and the versions of their driver ---

# The first driver of each CUDA version: CUDA release notes, "CUDA Driver" table.
_DRIVERS: Final = {
    "11.8": "520.61.05",
    "12.0": "525.60.13",
    "12.1": "530.30.02",
    "12.2": "535.54.03",
    "12.3": "545.23.06",
    "12.4": "550.54.14",
    "12.5": "555.42.02",
    "12.6": "560.28.03",
    "12.8": "570.86.10",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
}


class ProfileError(ValueError):
    """An invalid profile or version; the message names the key and the value."""


def libraries() -> Path:
    """Return the folder of the simulated libraries and profiles; FileNotFoundError without them."""
    folders = [Path(folder) / "lib" / "simulator" for folder in gpushare.__path__]
    for folder in folders:
        if (folder / "libcuda.so.1").is_file():
            return folder
    raise FileNotFoundError(f"the simulated driver is not in {', '.join(map(str, folders))}")


def load_profile(profile: str | Path, folder: Path | None = None) -> dict[str, Any]:
    """Return a profile by name ("h200") or by the path of a JSON file; ProfileError.

    A profile has the keys of the one that it names as `like`, and its own instead of those.
    """
    directory = folder or libraries() / "profiles"
    path = Path(profile)
    if path.suffix != ".json":
        path = directory / f"{profile}.json"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in directory.glob("*.json")))
            raise ProfileError(f'profile "{profile}": unknown. Use one of {known}')
    loaded = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(loaded, dict):
        raise ProfileError(f"{path}: not a JSON object")
    like = loaded.pop("like", None)
    whole = {**(load_profile(like, directory) if like else {}), **loaded}
    _check(whole, path)
    return whole


def _check(profile: dict[str, Any], path: Path) -> None:
    texts = {"name", "serial", "vbios", "uuid_seed", "driver_version", "cuda_version"}
    numbers = {*PROFILE_WIDE, *PROFILE_NARROW} - PER_CARD
    for key in sorted((texts | numbers) - profile.keys()):
        raise ProfileError(f"{path}: {key} is missing")
    for key, value in profile.items():
        if key in ("sources", "mig"):
            continue
        if key == "topology":
            _check_topology(value, path)
            continue
        if key not in texts | numbers | {*PROFILE_OPTIONAL}:
            raise ProfileError(f"{path}: {key} is not a profile key")
        wanted = str if key in texts else int
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ProfileError(f"{path}: {key}: {value!r} is not {wanted.__name__}")
        if isinstance(value, int) and value < 0:
            raise ProfileError(f"{path}: {key}: {value} is negative")


def _check_topology(topology: Any, path: Path) -> None:
    """Check that a topology consists of lists with a number for each card."""
    if not isinstance(topology, dict):
        raise ProfileError(f"{path}: topology: {topology!r} is not an object")
    for key, value in topology.items():
        if key not in ("numa_node", "pci_bridge", "pci_switch", "nvlink", "nvlinks"):
            raise ProfileError(f"{path}: topology.{key} is not a topology key")
        numbers = [value] if key == "nvlinks" else value
        if key == "nvlink" and isinstance(value, list):
            numbers = [number for group in value for number in group]
        if not isinstance(numbers, list) or not all(
            isinstance(number, int) and 0 <= number < 1 << 16 for number in numbers
        ):
            raise ProfileError(f"{path}: topology.{key}: {value!r}: numbers must be below 65536")


def check_instances(profile: dict[str, Any], cards: int, mig: Sequence[str]) -> None:
    """Check that the cards can be partitioned into the instances `mig`."""
    known: dict[str, Any] = profile.get("mig", {})
    for name in mig:
        if name not in known:
            raise ProfileError(f"mig={name}: unknown. Use one of {', '.join(known) or '(none)'}")
    eighths = sum(known[name]["memory_eighths"] for name in mig)
    slices = sum(int(name[0]) for name in mig)
    if eighths > 8 or slices > 7:
        raise ProfileError(
            f"mig={' '.join(mig)}: uses {eighths} of 8 parts of the memory and {slices} of 7 slices"
        )
    try:
        check_places(profile, mig)
    except ValueError as error:
        raise ProfileError(str(error)) from error
    if cards * (1 + len(mig)) > CARDS_MOST:
        raise ProfileError(f"mig: more than {CARDS_MOST} cards and instances")


def resolve_versions(
    profile: dict[str, Any], driver_version: str | None, cuda_version: str | None
) -> tuple[str, int]:
    """Return the driver's version and CUDA's as 13000; each is derived from the other if known."""
    if driver_version and not cuda_version:
        branch = driver_version.partition(".")[0]
        cuda_version = next(
            (cuda for cuda, first in _DRIVERS.items() if first.partition(".")[0] == branch), None
        )
        if cuda_version is None:
            raise ProfileError(f"driver_version={driver_version}: unknown. Add its cuda_version")
    elif cuda_version and not driver_version:
        driver_version = _DRIVERS.get(cuda_version)
        if driver_version is None:
            raise ProfileError(f"cuda_version={cuda_version}: unknown. Add its driver_version")
    driver = driver_version or str(profile["driver_version"])
    cuda = cuda_version or str(profile["cuda_version"])
    major, _, minor = cuda.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise ProfileError(f"cuda_version={cuda}: not a version. Use, for example, 12.4")
    return driver, int(major) * 1000 + int(minor) * 10
