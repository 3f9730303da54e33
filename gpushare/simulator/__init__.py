# SPDX-License-Identifier: Apache-2.0
"""Simulated cards: the device file and the CDI spec of a simulated driver.

The simulated `libcuda.so.1` and `libnvidia-ml.so.1` (simulator/) share their cards through
one *device file*. This package creates it from a profile, a JSON object that describes a model of
card, and also writes the CDI spec with which an engine or gpushared passes it to containers.

    gpushare simulator create DIR --profile h200 --cards 2

A process finds the cards through the variable GPUSHARE_SIM_DEVICE, or at /dev/gpushare-sim. Do not
inject a fault from a process that is attached to the cards, such as one that uses NVML: closing the
file here would release the process's slot.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.oci.elf import this_platform
from gpushare.simulator.device_file import (
    CARDS_MOST,
    FAULTS_OFFSET,
    LAYOUT,
    MAGIC,
    REAL_TIME_Q16,
    VERSION_BYTES,
    Faults,
    Header,
    Profile,
    ProfileError,
    card_uuid,
    check_instances,
    device_content,
    instance_profiles,
    instance_uuid,
    libraries,
    load_profile,
    resolve_versions,
    write_device,
)

CDI_KIND: Final = "nvidia.com/gpu"
DEVICE_IN_CONTAINER: Final = "/dev/gpushare-sim"
_NVIDIA_MAJOR: Final = 195  # Linux, Documentation/admin-guide/devices.txt
_NVIDIACTL_MINOR: Final = 255
_CAPS: Final = 1 << 12  # the first minor of the capabilities: a driver's have a major of their own
INSTANCES_MOST: Final = 7  # of a card, as its slices
DEVICE_ENV: Final = "GPUSHARE_SIM_DEVICE"


def cdi_spec(device: Path, folder: Path, uuids: tuple[str, ...], seed: str = "") -> dict[str, Any]:
    """Return a CDI spec for the cards by index, by UUID, and "all"; version 0.5, for podman 4.

    With `seed`, which the UUIDs are made of, it also has every MIG instance that there can be: by
    its place ("0:1") and its UUID, with the nodes of its two capabilities.

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
    for index in range(len(uuids) if seed else 0):
        for number in range(INSTANCES_MOST):
            numbers = capability_numbers(index, number)
            caps = [
                node(f"/dev/nvidia-caps/nvidia-cap{capability}", _CAPS + capability)
                for capability in numbers
            ]
            edits = {"deviceNodes": [nodes[index], *caps]}
            names = (f"{index}:{number}", f"MIG-{instance_uuid(seed, index, number)}")
            devices += [{"name": name, "containerEdits": edits} for name in names]
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


def capability_numbers(card: int, instance: int) -> tuple[int, int]:
    """Return the numbers of an instance's GPU instance and compute instance, as a driver has them.

    Those of /proc/driver/nvidia-caps/mig-minors: config is 1, monitor 2, and each card has 15 GPU
    instances with 8 compute instances each.
    """
    of_gpu_instance = 3 + card * 15 * 9 + (instance + 1) * 9
    return of_gpu_instance, of_gpu_instance + 1


@dataclass(frozen=True)
class Simulator:
    """The files and UUIDs that `create` returns."""

    device: Path
    cdi: Path
    uuids: tuple[str, ...]
    instances: tuple[str, ...] = ()  # the UUIDs of MIG instances, card by card

    @property
    def mps_control(self) -> Path:
        """The program nvidia-cuda-mps-control."""
        return self.device.with_name("nvidia-cuda-mps-control")

    @property
    def env(self) -> dict[str, str]:
        """The variable with which a process on the host finds the cards."""
        return {DEVICE_ENV: str(self.device)}


def create(  # noqa: PLR0913 - all but the first have defaults, and the last two are rare
    directory: str | os.PathLike[str],
    profile: str | Path = "h200",
    cards: int = 1,
    driver_version: str | None = None,
    time_scale: float = 1,
    *,
    cuda_version: str | None = None,
    mig: Sequence[str] = (),
    folder: Path | None = None,
) -> Simulator:
    """Write `device` and `cdi.json` into `directory`, for `cards` cards of one profile.

    `driver_version` ("570.86.10") and `cuda_version` ("12.8") replace the profile's; for a known
    version, either is enough. Every duration is multiplied by `time_scale`. Each card is
    partitioned into the instances `mig` ("1g.18gb"), in that order. `folder` contains the simulated
    libraries, by default the package's own. ProfileError for an invalid request, OSError for a
    failed write.
    """
    if not 1 <= cards <= CARDS_MOST:
        raise ProfileError(f"cards={cards}: must be between 1 and {CARDS_MOST}")
    if not 0 < time_scale <= 1000:
        raise ProfileError(f"time_scale={time_scale}: must be above 0 and at most 1000")
    folder = folder or libraries()
    loaded = load_profile(profile, folder / "profiles")
    check_instances(loaded, cards, mig)
    content = device_content(
        loaded, cards, resolve_versions(loaded, driver_version, cuda_version), time_scale, mig
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
    simulator = Simulator(root / "device", root / "cdi.json", uuids, instances)
    write_device(simulator.device, content)
    spec = cdi_spec(simulator.device, folder.absolute(), uuids, seed if "mig" in loaded else "")
    simulator.cdi.write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    _write_mps_control(simulator)
    return simulator


def _write_mps_control(simulator: Simulator) -> None:
    """Write the program that starts the MPS control daemon of these cards, and sends it commands.

    It uses this interpreter, whatever the environment in which it is started.
    """
    simulator.mps_control.write_text(
        "#!/bin/sh\n"
        f": ${{{DEVICE_ENV}:={shlex.quote(str(simulator.device))}}}\n"
        f"export {DEVICE_ENV}\n"
        f'exec {shlex.quote(sys.executable)} -I -m gpushare.simulator.mps "$@"\n',
        encoding="utf-8",
    )
    simulator.mps_control.chmod(0o755)


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
    `listed` - 1, 0 means at its place, and NOWHERE not at all. The card is in `compute_mode`: 2 is
    prohibited, 3 exclusive to one process. With `persistence_off`, persistence mode is off. The
    first process on the card uses its encoder and decoder for `encoder_percent` and
    `decoder_percent` of the time.

    The next `checkpoint_faults` checkpoint calls of the kind `checkpoint_operation`
    (CheckpointOperation) for a process on the card have the effect `checkpoint_effect`
    (CheckpointFault), and return `checkpoint_error`. TypeError for another name, OSError.

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
        instances = [
            instance
            for card in range(cards)
            for instance in instance_profiles(loaded, card, mig, time_scale)
        ]
        behind = ctypes.sizeof(Header) + cards * ctypes.sizeof(Profile)
        os.pwrite(descriptor, b"".join(map(bytes, instances)), behind)
        count = bytes(ctypes.c_uint32(len(instances)))
        os.pwrite(descriptor, count, Header.instance_count.offset)
    return tuple(f"MIG-{uuid.UUID(bytes=bytes(instance.uuid))}" for instance in instances)
