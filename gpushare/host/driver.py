# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver of this host: its libraries, programs and device nodes, as a CDI spec.

nvidia-ctk writes such a spec too, where it is installed; this one needs nothing but the driver. Its
files are found as the driver's installer leaves them: the libraries of one driver end in its
version and lie in the folder of libcuda.so.1.
Source: CDI SPEC.md 0.6; /proc/driver/nvidia as the driver's README has it.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.errors import UserError
from gpushare.host import loader

CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"
LINKS: Final = Path("/opt/gpushare/driver")

_PROGRAMS: Final = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced")
_CONTROL: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_MINORS: Final = {"nvidiactl": 255, "nvidia-modeset": 254, "nvidia-uvm": 0, "nvidia-uvm-tools": 1}
_OPTIONS: Final = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


class DriverMissing(UserError):
    """This host has no usable NVIDIA driver; says which part is missing and how to get it."""


@dataclass(frozen=True)
class Card:
    """One GPU as the kernel module lists it."""

    index: int  # in the order of PCI addresses, as NVML counts
    uuid: str
    minor: int


@dataclass(frozen=True)
class Node:
    """A device node; its numbers are known even where /dev does not have it."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True)
class Driver:
    """A driver beneath `root` (a host, or an image that is being built)."""

    root: Path
    version: str
    libraries: tuple[Path, ...]
    programs: tuple[Path, ...]
    cards: tuple[Card, ...]
    control: tuple[Node, ...]
    gpu_major: int

    def library(self, soname: str) -> Path:
        """Return the file behind `soname`; DriverMissing when the driver has none."""
        name = soname.removesuffix(".1")
        for path in self.libraries:
            if path.name.startswith(f"{name}."):
                return path
        raise DriverMissing(f"the driver {self.version} has no {soname} beside {CUDA}")

    def cdi(self) -> dict[str, Any]:
        """Return the driver as a CDI spec: every card by index and UUID, and `all`."""
        nodes = {card: self._card_node(card) for card in self.cards}
        devices = [
            {"name": name, "containerEdits": {"deviceNodes": [node]}}
            for card, node in nodes.items()
            for name in (str(card.index), card.uuid)
        ]
        if nodes:
            everything = {"deviceNodes": list(nodes.values())}
            devices.append({"name": "all", "containerEdits": everything})
        control = [_node(node.path, node.major, node.minor) for node in self.control]
        files = [*self.libraries, *self.programs]
        mounts = [
            {"hostPath": path, "containerPath": path, "options": _OPTIONS}
            for path in (_within(self.root, file) for file in files)
        ]
        return {
            "cdiVersion": "0.6.0",
            "kind": "nvidia.com/gpu",
            "annotations": {"gpushare.io/driver": self.version},
            "devices": devices,
            "containerEdits": {"deviceNodes": control, "mounts": mounts},
        }

    def _card_node(self, card: Card) -> dict[str, Any]:
        return _node(f"/dev/nvidia{card.minor}", self.gpu_major, card.minor)


def find(root: Path = Path("/"), *, search: str = "") -> Driver:
    """Return the driver beneath `root`; DriverMissing when there is none, or half of one.

    `search` is an LD_LIBRARY_PATH, for a driver that is in one folder which only that names.
    """
    found = loader.paths(CUDA, root=root, search=search)
    whole = [path for path in found if path.stat().st_size]
    if not whole:
        if found:
            raise DriverMissing(f"{found[0]} is empty: an image's placeholder, no driver")
        raise DriverMissing(
            f"the loader finds no {CUDA}: install NVIDIA's driver, or try without a GPU: "
            "gpushare setup --simulate h200"
        )
    version = _version(whole[0])
    majors = _majors(root)
    return Driver(
        root=root,
        version=version,
        libraries=tuple(sorted(whole[0].parent.glob(f"lib*.so.{version}"))),
        programs=tuple(
            path
            for name in _PROGRAMS
            if (path := root / "usr/bin" / name).is_file() and path.stat().st_size
        ),
        cards=_cards(root),
        control=_control(root, majors),
        gpu_major=majors.get("nvidia-frontend", majors.get("nvidia", 195)),
    )


def kernel_version(root: Path = Path("/")) -> str | None:
    """Return the version of the loaded kernel module, None when none is loaded."""
    try:
        return (root / "sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None


def stale(spec: dict[str, Any]) -> list[str]:
    """Return the host files that a CDI spec names and that are not there (any more)."""
    edits = [spec.get("containerEdits") or {}]
    edits += [device.get("containerEdits") or {} for device in spec.get("devices") or []]
    mounts = [mount for edit in edits for mount in edit.get("mounts") or []]
    return [mount["hostPath"] for mount in mounts if not Path(mount["hostPath"]).exists()]


def _version(libcuda: Path) -> str:
    """Return the version in the name of the real file, e.g. 580.159.04."""
    match = re.fullmatch(r"libcuda\.so\.([0-9]+(?:\.[0-9]+)+)", libcuda.name)
    if match is None:
        raise DriverMissing(
            f"{libcuda} has no version in its name, so it is not as NVIDIA's driver installs it; "
            "set driver.cdi in gpushare.yaml"
        )
    return match.group(1)


def _majors(root: Path) -> dict[str, int]:
    """Return the character devices' majors by name, from /proc/devices."""
    try:
        text = (root / "proc/devices").read_text(encoding="ascii")
    except FileNotFoundError:
        return {}
    lines = text.partition("Block devices:")[0].splitlines()
    pairs = [line.split() for line in lines]
    return {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()}


def _cards(root: Path) -> tuple[Card, ...]:
    """Return the GPUs that can be used: in a container the module lists its host's, too."""
    present = {path.name for path in (root / "dev").glob("nvidia[0-9]*")}
    cards: list[Card] = []
    for folder in sorted(root.glob("proc/driver/nvidia/gpus/*")):
        text = (folder / "information").read_text(encoding="ascii", errors="replace")
        said = dict(re.findall(r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))
        minor = said.get("Device Minor")
        if minor is None or "GPU UUID" not in said:
            continue
        if not present or f"nvidia{minor}" in present:
            cards.append(Card(len(cards), said["GPU UUID"], int(minor)))
    return tuple(cards)


def _control(root: Path, majors: dict[str, int]) -> tuple[Node, ...]:
    """Return the nodes that belong to no one card: as /dev has them, else as the kernel says."""
    nodes: list[Node] = []
    for name in _CONTROL:
        path, minor = f"/dev/{name}", _MINORS[name]
        uvm = name.startswith("nvidia-uvm")
        major = majors.get("nvidia-uvm" if uvm else "nvidia-frontend", majors.get(name))
        if not uvm and major is None:
            major = majors.get("nvidia")
        try:
            status = (root / path.lstrip("/")).stat()
        except FileNotFoundError:
            status = None
        if status is not None and stat.S_ISCHR(status.st_mode):
            nodes.append(Node(path, os.major(status.st_rdev), os.minor(status.st_rdev)))
        elif major is not None and name != "nvidia-modeset":
            nodes.append(Node(path, major, minor))
    return tuple(nodes)


def _node(path: str, major: int, minor: int) -> dict[str, Any]:
    return {"path": path, "type": "c", "major": major, "minor": minor}


def _within(root: Path, path: Path) -> str:
    """Return `path` as it is called once `root` is the root."""
    return str(Path("/") / path.relative_to(root.resolve()))
