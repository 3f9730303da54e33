# SPDX-License-Identifier: Apache-2.0
"""Creates a machine with simulated cards: the device file and its CDI spec."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gpushare
from gpushare.oci.elf import this_platform
from gpushare.simulator.device_file import (
    CARDS_MOST,
    PER_CARD,
    PROFILE_NARROW,
    PROFILE_OPTIONAL,
    PROFILE_WIDE,
    card_uuid,
    device_content,
    instance_uuid,
    write_device,
)

CDI_KIND: Final = "nvidia.com/gpu"
DEVICE_IN_CONTAINER: Final = "/dev/gpushare-sim"
_NVIDIA_MAJOR: Final = 195  # Linux, Documentation/admin-guide/devices.txt
_NVIDIACTL_MINOR: Final = 255
DEVICE_ENV: Final = "GPUSHARE_SIM_DEVICE"


def cdi_spec(device: Path, folder: Path, uuids: tuple[str, ...]) -> dict[str, Any]:
    """Return a CDI spec for the cards by index, by UUID, and "all"; version 0.5, for podman 4.

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


@dataclass(frozen=True)
class Simulator:
    """The files and UUIDs that `create` returns."""

    device: Path
    cdi: Path
    uuids: tuple[str, ...]
    instances: tuple[str, ...] = ()  # the UUIDs of MIG instances, card by card

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
    made = Simulator(root / "device", root / "cdi.json", uuids, instances)
    write_device(made.device, content)
    spec = cdi_spec(made.device, folder.absolute(), uuids)
    made.cdi.write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    return made


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
    """Return a profile by name ("h200") or by the path of a JSON file; ProfileError."""
    path = Path(profile)
    if path.suffix != ".json":
        directory = folder or libraries() / "profiles"
        path = directory / f"{profile}.json"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in directory.glob("*.json")))
            raise ProfileError(f'profile "{profile}": unknown. Use one of {known}')
    loaded = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(loaded, dict):
        raise ProfileError(f"{path}: not a JSON object")
    _check(loaded, path)
    return loaded


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
