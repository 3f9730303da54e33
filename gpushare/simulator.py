# SPDX-License-Identifier: Apache-2.0
"""Cards without hardware: the device file and the CDI spec of a simulated driver.

The simulated `libcuda.so.1` and `libnvidia-ml.so.1` (libhook/simulator) share their cards through
one *device file*. This module writes it from a profile, a JSON object that describes one model of
card, and writes beside it the CDI spec by which an engine or gpushared gives it to containers.

    python -m gpushare.simulator create DIR --profile h200 --cards 2

A process finds the cards by the variable GPUSHARE_SIM_DEVICE, or at /dev/gpushare-sim.
"""

from __future__ import annotations

import argparse
import ctypes
import enum
import json
import os
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gpushare
from gpushare.oci.platform import this_platform

DEVICE_ENV: Final = "GPUSHARE_SIM_DEVICE"
DEVICE_IN_CONTAINER: Final = "/dev/gpushare-sim"
CDI_KIND: Final = "nvidia.com/gpu"

_MAGIC: Final = 0x31306D6973757067
_LAYOUT: Final = 3
_FILE_BYTES: Final = 128 << 20
_CARDS_MOST: Final = 16
_VERSION_BYTES: Final = 80
_UNIT_BYTES: Final = 2 << 20
_REAL_TIME_Q16: Final = 1 << 16
_UUID_NAMESPACE: Final = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562: OIDs
_NVIDIA_MAJOR: Final = 195  # Linux, Documentation/admin-guide/devices.txt
_NVIDIACTL_MINOR: Final = 255

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
    """A profile or a version that cannot be simulated; the message names the key and the value."""


class Header(ctypes.Structure):
    """`struct sim_header` of libhook/simulator/device.h."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("layout", ctypes.c_uint32),
        ("card_count", ctypes.c_uint32),
        ("cuda_version", ctypes.c_uint32),
        ("slow_motion_q16", ctypes.c_uint32),
        ("file_bytes", ctypes.c_uint64),
        ("driver_version", ctypes.c_char * _VERSION_BYTES),
        ("instance_count", ctypes.c_uint32),
        ("nvml_init_error", ctypes.c_uint32),
        ("reserved", ctypes.c_uint64 * 3),
    )


_PROFILE_WIDE: Final = (
    "memory_bytes",
    "reserved_bytes",
    "context_bytes",
    "bar1_bytes",
    "slice_ns",
    "switch_preempt_ns",
    "switch_drained_ns",
    "link_bytes_per_second",
    "memory_bytes_per_second",
)
_PROFILE_NARROW: Final = (
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
_PROFILE_INSTANCE: Final = ("parent", "gpu_instance", "compute_instance", "slices")
_PROFILE_PLACE: Final = ("numa_node", "pci_bridge", "pci_switch", "nvlink_peers", "nvlinks")
# Set for each card, not by the profile.
_PER_CARD: Final = frozenset({"pci_bus"})


class Profile(ctypes.Structure):
    """`struct sim_profile` of libhook/simulator/device.h."""

    _fields_ = (
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_uint8 * 16),
        ("serial", ctypes.c_char * 16),
        ("vbios", ctypes.c_char * 32),
        *((name, ctypes.c_uint64) for name in _PROFILE_WIDE),
        *(
            (name, ctypes.c_uint32)
            for name in (*_PROFILE_NARROW, *_PROFILE_INSTANCE, *_PROFILE_PLACE)
        ),
        ("reserved", ctypes.c_uint32 * 8),
    )


class Faults(ctypes.Structure):
    """`struct sim_faults` of libhook/simulator/device.h."""

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
        ("reserved", ctypes.c_uint32 * 3),
    )


class Lie(enum.IntFlag):
    """`enum sim_lie` of libhook/simulator/device.h: what NVML says and cannot be."""

    BYTES = 1  # each process holds twice what the card has
    TWICE = 2  # a process is listed twice, with other bytes
    USED = 4  # nothing of the card is used
    TOTAL = 8  # the card has half of its memory
    UNSAID = 16  # no lie: what processes hold is not said
    PID = 32  # a process that cannot be there is listed
    UUID = 64  # the card has another UUID


#: `listed` of a card that NVML does not list.
NOWHERE: Final = 0xFFFFFFFF
#: nvmlReturn_t: the libraries are of another version than the kernel's module.
MISMATCH: Final = 18


@dataclass(frozen=True)
class Simulator:
    """What `create` made."""

    device: Path
    cdi: Path
    uuids: tuple[str, ...]
    instances: tuple[str, ...] = ()  # the UUIDs of MIG instances, card by card

    @property
    def env(self) -> dict[str, str]:
        """The variable by which a process of the host finds the cards."""
        return {DEVICE_ENV: str(self.device)}


def libraries() -> Path:
    """Return the folder of the simulated libraries and profiles; FileNotFoundError without them."""
    folders = [Path(folder) / "lib" / "simulator" for folder in gpushare.__path__]
    for folder in folders:
        if (folder / "libcuda.so.1").is_file():
            return folder
    raise FileNotFoundError(f"the simulated driver is in none of {', '.join(map(str, folders))}")


def load_profile(profile: str | Path, folder: Path | None = None) -> dict[str, Any]:
    """Return a profile by name ("h200") or by the path of a JSON file; ProfileError."""
    path = Path(profile)
    if path.suffix != ".json":
        directory = folder or libraries() / "profiles"
        path = directory / f"{profile}.json"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in directory.glob("*.json")))
            raise ProfileError(f'profile "{profile}" is not known: it is one of {known}')
    loaded = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(loaded, dict):
        raise ProfileError(f"{path}: a profile is a JSON object")
    _check(loaded, path)
    return loaded


def _check(profile: dict[str, Any], path: Path) -> None:
    texts = {"name", "serial", "vbios", "uuid_seed", "driver_version", "cuda_version"}
    numbers = {*_PROFILE_WIDE, *_PROFILE_NARROW} - _PER_CARD
    for key in sorted((texts | numbers) - profile.keys()):
        raise ProfileError(f"{path}: {key} is missing")
    for key, value in profile.items():
        if key in ("sources", "mig"):
            continue
        if key == "topology":
            _check_topology(value, path)
            continue
        if key not in texts | numbers:
            raise ProfileError(f"{path}: {key} is not a key of a profile")
        wanted = str if key in texts else int
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ProfileError(f"{path}: {key}: {value!r} is not {wanted.__name__}")
        if isinstance(value, int) and value < 0:
            raise ProfileError(f"{path}: {key}: {value} is negative")


def _check_topology(topology: Any, path: Path) -> None:
    """Refuse a machine that is not made of lists of numbers, a place for each card."""
    if not isinstance(topology, dict):
        raise ProfileError(f"{path}: topology: {topology!r} is not an object")
    for key, value in topology.items():
        if key not in ("numa_node", "pci_bridge", "pci_switch", "nvlink", "nvlinks"):
            raise ProfileError(f"{path}: topology.{key} is not a key of a topology")
        numbers = [value] if key == "nvlinks" else value
        if key == "nvlink" and isinstance(value, list):
            numbers = [number for group in value for number in group]
        if not isinstance(numbers, list) or not all(
            isinstance(number, int) and 0 <= number < 1 << 16 for number in numbers
        ):
            raise ProfileError(f"{path}: topology.{key}: {value!r} is not made of small numbers")


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


def _versions(
    profile: dict[str, Any], driver_version: str | None, cuda_version: str | None
) -> tuple[str, int]:
    """Return the driver's version and CUDA's as 13000; each is told by the other if it can be."""
    if driver_version and not cuda_version:
        branch = driver_version.partition(".")[0]
        cuda_version = next(
            (cuda for cuda, first in _DRIVERS.items() if first.partition(".")[0] == branch), None
        )
        if cuda_version is None:
            raise ProfileError(f"driver_version {driver_version}: say its cuda_version too")
    elif cuda_version and not driver_version:
        driver_version = _DRIVERS.get(cuda_version)
        if driver_version is None:
            raise ProfileError(f"cuda_version {cuda_version}: say its driver_version too")
    driver = driver_version or str(profile["driver_version"])
    cuda = cuda_version or str(profile["cuda_version"])
    major, _, minor = cuda.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise ProfileError(f"cuda_version {cuda}: write e.g. 12.4")
    return driver, int(major) * 1000 + int(minor) * 10


def card_uuid(seed: str, index: int) -> uuid.UUID:
    """Return the UUID of one card: the same for the same seed and index, always."""
    return uuid.uuid5(_UUID_NAMESPACE, f"{seed}/{index}")


def _card(profile: dict[str, Any], index: int) -> Profile:
    numbers = {key: profile[key] for key in {*_PROFILE_WIDE, *_PROFILE_NARROW} - _PER_CARD}
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


def _check_instances(profile: dict[str, Any], cards: int, mig: Sequence[str]) -> None:
    """Refuse what no such card can be partitioned into."""
    known: dict[str, Any] = profile.get("mig", {})
    for name in mig:
        if name not in known:
            raise ProfileError(f"mig: {name} is none of {', '.join(known) or 'no instances'}")
    eighths = sum(known[name]["memory_eighths"] for name in mig)
    slices = sum(int(name[0]) for name in mig)
    if eighths > 8 or slices > 7:
        raise ProfileError(
            f"mig: {', '.join(mig)} are {eighths} of 8 parts of the memory and {slices} of 7 slices"
        )
    if cards * (1 + len(mig)) > _CARDS_MOST:
        raise ProfileError(f"mig: cards and instances are more than {_CARDS_MOST}")


def instance_uuid(seed: str, card: int, index: int) -> uuid.UUID:
    """Return the UUID of one card's MIG instance: the same for the same arguments, always."""
    return uuid.uuid5(_UUID_NAMESPACE, f"{seed}/{card}/mig/{index}")


def _instance(profile: dict[str, Any], card: int, index: int, name: str) -> Profile:
    """Return one instance of a card: a card with its part of the memory and multiprocessors."""
    made = _card(profile, card)
    eighths = profile["mig"][name]["memory_eighths"]
    made.name = f"{profile['name']} MIG {name}".encode()
    made.memory_bytes = made.memory_bytes * eighths // 8 // _UNIT_BYTES * _UNIT_BYTES
    made.reserved_bytes = made.reserved_bytes * eighths // 8 // _UNIT_BYTES * _UNIT_BYTES
    made.multiprocessors = profile["mig"][name]["multiprocessors"]
    made.slices = int(name[0])
    made.parent = card + 1
    made.gpu_instance = index + 1  # 0 is the whole card's
    made.uuid[:] = instance_uuid(str(profile["uuid_seed"]), card, index).bytes
    return made


def _device_bytes(
    profile: dict[str, Any],
    cards: int,
    versions: tuple[str, int],
    slow_motion: float,
    mig: Sequence[str],
) -> bytes:
    driver, cuda = versions
    header = Header(
        magic=_MAGIC,
        layout=_LAYOUT,
        card_count=cards,
        cuda_version=cuda,
        slow_motion_q16=round(slow_motion * _REAL_TIME_Q16),
        file_bytes=_FILE_BYTES,
        driver_version=driver.encode(),
        instance_count=cards * len(mig),
    )
    entries = [_card(profile, index) for index in range(cards)]
    entries += [
        _instance(profile, card, index, name)
        for card in range(cards)
        for index, name in enumerate(mig)
    ]
    return bytes(header) + b"".join(map(bytes, entries))


def _write_device(path: Path, content: bytes) -> None:
    """Make the file anew: processes that have the last one mapped keep it to themselves."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o666)  # as /dev/nvidia0: a container's user may be anyone
        os.write(descriptor, content)
        os.ftruncate(descriptor, _FILE_BYTES)
    finally:
        os.close(descriptor)


_FAULTS_OFFSET: Final = -(
    -(ctypes.sizeof(Header) + _CARDS_MOST * ctypes.sizeof(Profile)) // 64 * 64
)


def slow_motion(device: Path) -> float:
    """Return what the simulated cards multiply every duration by; ValueError for another file.

    Not to be called by a process that is attached to the cards: see `fail`.
    """
    with device.open("rb") as file:
        header = Header.from_buffer_copy(file.read(ctypes.sizeof(Header)))
    if header.magic != _MAGIC:
        raise ValueError(f"{device} is no simulated driver's device")
    return float(header.slow_motion_q16 / _REAL_TIME_Q16)


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
    offset = _FAULTS_OFFSET + card * ctypes.sizeof(Faults)
    first = Faults.after.offset
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        before = Faults.from_buffer_copy(os.pread(descriptor, ctypes.sizeof(Faults), offset))
        wanted.xid, wanted.xids = before.xid, before.xids  # what has happened has
        # The count last: with it the others take effect.
        os.pwrite(descriptor, bytes(first), offset)
        os.pwrite(descriptor, bytes(wanted)[first:], offset + first)
        os.pwrite(descriptor, bytes(wanted)[:first], offset)
    finally:
        os.close(descriptor)


def raise_xid(device: Path, number: int, card: int = 0) -> None:
    """Let NVML tell an XID of a card to who has asked for them. OSError; see `fail`."""
    offset = _FAULTS_OFFSET + card * ctypes.sizeof(Faults)
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        faults = Faults.from_buffer_copy(os.pread(descriptor, ctypes.sizeof(Faults), offset))
        os.pwrite(descriptor, bytes(ctypes.c_uint32(number)), offset + Faults.xid.offset)
        count = ctypes.c_uint32(faults.xids + 1)
        os.pwrite(descriptor, bytes(count), offset + Faults.xids.offset)
    finally:
        os.close(descriptor)


def change_driver(device: Path, version: str = "", init_error: int = 0) -> None:
    """Let the driver be another version, "" the same, and nvmlInit answer an nvmlReturn_t.

    MISMATCH is what it answers between an upgrade's files and its module. ProfileError for what is
    no version, OSError; see `fail`.
    """
    if version and not (version.replace(".", "").isdigit() and len(version) < _VERSION_BYTES):
        raise ProfileError(f"driver_version {version}: write e.g. 590.10.01")
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        if version:
            text = version.encode().ljust(_VERSION_BYTES, b"\0")
            os.pwrite(descriptor, text, Header.driver_version.offset)
        error = bytes(ctypes.c_uint32(init_error))
        os.pwrite(descriptor, error, Header.nvml_init_error.offset)
    finally:
        os.close(descriptor)


def partition(device: Path, mig: Sequence[str], profile: str | Path = "h200") -> tuple[str, ...]:
    """Partition the cards, which are of `profile`, into the instances `mig`; () joins them again.

    Returns the instances' UUIDs. Programs that run keep what they have, which a real driver would
    not allow. ProfileError, OSError; see `fail`.
    """
    loaded = load_profile(profile)
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        header = Header.from_buffer_copy(os.pread(descriptor, ctypes.sizeof(Header), 0))
        cards = header.card_count
        _check_instances(loaded, cards, mig)
        made = [
            _instance(loaded, card, index, name)
            for card in range(cards)
            for index, name in enumerate(mig)
        ]
        behind = ctypes.sizeof(Header) + cards * ctypes.sizeof(Profile)
        os.pwrite(descriptor, b"".join(map(bytes, made)), behind)
        count = bytes(ctypes.c_uint32(len(made)))
        os.pwrite(descriptor, count, Header.instance_count.offset)
    finally:
        os.close(descriptor)
    return tuple(f"MIG-{uuid.UUID(bytes=bytes(instance.uuid))}" for instance in made)


def cdi_spec(device: Path, folder: Path, uuids: tuple[str, ...]) -> dict[str, Any]:
    """Return a CDI spec for the cards: by index, by UUID, and "all"; 0.5, which podman 4 reads.

    https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
    """
    target = this_platform().library_directories[0]

    def node(path: str, minor: int) -> dict[str, Any]:
        return {"path": path, "type": "c", "major": _NVIDIA_MAJOR, "minor": minor}

    nodes = [node(f"/dev/nvidia{index}", index) for index in range(len(uuids))]
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [nodes[index]]}}
        for index, card in enumerate(uuids)
        for name in (str(index), card)
    ]
    devices.append({"name": "all", "containerEdits": {"deviceNodes": nodes}})
    mounts = [
        {
            "hostPath": str(folder / name),
            "containerPath": f"{target}/{name}",
            "options": ["ro", "nosuid", "nodev", "bind"],
        }
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    ]
    mounts.append(
        {
            "hostPath": str(device),
            "containerPath": DEVICE_IN_CONTAINER,
            "options": ["rw", "nosuid", "nodev", "noexec", "bind"],
        }
    )
    return {
        "cdiVersion": "0.5.0",
        "kind": CDI_KIND,
        "devices": devices,
        "containerEdits": {
            "deviceNodes": [node("/dev/nvidiactl", _NVIDIACTL_MINOR)],
            "mounts": mounts,
        },
    }


def create(  # noqa: PLR0913 - all but the first have defaults, and the last two are rare
    directory: str | os.PathLike[str],
    profile: str | Path = "h200",
    cards: int = 1,
    driver_version: str | None = None,
    slow_motion: float = 1,
    *,
    cuda_version: str | None = None,
    mig: Sequence[str] = (),
    folder: Path | None = None,
) -> Simulator:
    """Write `device` and `cdi.json` into `directory`, for `cards` cards of one profile.

    `driver_version` ("570.86.10") and `cuda_version` ("12.8") replace the profile's; either is
    enough for a version in the table. Every duration is multiplied by `slow_motion`. Each card is
    partitioned into the instances `mig` ("1g.18gb"), in that order. `folder` has
    the simulated libraries, the package's own by default. ProfileError for what cannot be
    simulated, OSError for what cannot be written.
    """
    if not 1 <= cards <= _CARDS_MOST:
        raise ProfileError(f"cards: {cards} is not between 1 and {_CARDS_MOST}")
    if not 0 < slow_motion <= 1000:
        raise ProfileError(f"slow_motion: {slow_motion} is not above 0 and at most 1000")
    folder = folder or libraries()
    loaded = load_profile(profile, folder / "profiles")
    _check_instances(loaded, cards, mig)
    content = _device_bytes(
        loaded, cards, _versions(loaded, driver_version, cuda_version), slow_motion, mig
    )
    seed = str(loaded["uuid_seed"])
    uuids = tuple(f"GPU-{card_uuid(seed, index)}" for index in range(cards))

    root = Path(directory).absolute()
    root.mkdir(parents=True, exist_ok=True)
    instances = tuple(
        f"MIG-{instance_uuid(seed, card, index)}"
        for card in range(cards)
        for index in range(len(mig))
    )
    made = Simulator(root / "device", root / "cdi.json", uuids, instances)
    _write_device(made.device, content)
    spec = cdi_spec(made.device, folder.absolute(), uuids)
    made.cdi.write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 0, or 1 with a line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m gpushare.simulator", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="create")
    verb = verbs.add_parser("create", help="write a device file and a CDI spec")
    verb.add_argument("directory", type=Path)
    verb.add_argument("--profile", default="h200", help="h200, a100-40gb, t4, or a JSON file")
    verb.add_argument("--cards", type=int, default=1)
    verb.add_argument("--driver-version", help="e.g. 570.86.10")
    verb.add_argument("--cuda-version", help="e.g. 12.8")
    verb.add_argument(
        "--mig", nargs="+", default=(), metavar="INSTANCE", help="partition each: 1g.18gb ..."
    )
    verb.add_argument("--slow-motion", type=float, default=1, help="factor on every duration")
    options = vars(parser.parse_args(arguments))
    try:
        made = create(**options)
    except (OSError, ProfileError) as error:
        sys.stderr.write(f"gpushare: {error}\n")
        return 1
    sys.stdout.write(f"export {DEVICE_ENV}={made.device}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
