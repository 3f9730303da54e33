# SPDX-License-Identifier: Apache-2.0
"""Profiles of simulated cards, and the versions of their driver."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import gpushare
from gpushare.simulator.device_file import (
    CARDS_MOST,
    PER_CARD,
    PROFILE_NARROW,
    PROFILE_OPTIONAL,
    PROFILE_WIDE,
    check_places,
)

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
