# SPDX-License-Identifier: Apache-2.0
"""The device nodes of NVIDIA's driver, with their numbers as the kernel has them now.

The majors of nvidia-uvm and of nvidia-caps are given out when the modules are loaded, and may be
others after a reboot: /proc/devices has them.
Source: NVIDIA driver README, "device nodes"; MIG user guide, "Device Nodes and Capabilities".
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpushare.host.tree import Tree

_CONTROL: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_MINORS: Final = {"nvidiactl": 255, "nvidia-uvm": 0, "nvidia-uvm-tools": 1}
_MAJOR: Final = 195  # Linux, Documentation/admin-guide/devices.txt
_CAPABILITIES: Final = "/proc/driver/nvidia/capabilities"


@dataclass(frozen=True)
class Node:
    """A device node; its numbers are known even where /dev does not have it."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True)
class Instance:
    """A MIG instance as the kernel numbers it: GPU instance, and compute instance within it.

    `nodes` are the two capabilities that let a process at it.
    """

    gpu: int
    compute: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Card:
    """One GPU as the kernel module lists it. `nodes` are its own, those of graphics too."""

    index: int  # in the order of PCI addresses, as NVML counts
    uuid: str
    minor: int
    address: str = ""  # on the PCI bus
    nodes: tuple[Node, ...] = ()
    instances: tuple[Instance, ...] = ()


def majors(root: Tree) -> dict[str, int]:
    """Return the character devices' majors by name, from /proc/devices."""
    lines = root.text("/proc/devices").partition("Block devices:")[0].splitlines()
    pairs = [line.split() for line in lines]
    return {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()}


def cards(root: Tree) -> tuple[Card, ...]:
    """Return the GPUs that can be used: in a container the module lists its host's, too."""
    present = set(root.glob("/dev/nvidia[0-9]*"))
    known = majors(root)
    found: list[Card] = []
    for folder in root.glob("/proc/driver/nvidia/gpus/*"):
        said = dict(
            re.findall(
                r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", root.text(f"{folder}/information"), re.MULTILINE
            )
        )
        minor = said.get("Device Minor", "")
        path = f"/dev/nvidia{minor}"
        if not minor.isdigit() or "GPU UUID" not in said or (present and path not in present):
            continue
        address = folder.rpartition("/")[2]
        found.append(
            Card(
                index=len(found),
                uuid=said["GPU UUID"],
                minor=int(minor),
                address=address,
                nodes=(Node(path, _gpu_major(known), int(minor)), *_drm(root, address)),
                instances=_instances(root, int(minor), known.get("nvidia-caps")),
            )
        )
    return tuple(found)


def control(root: Tree) -> tuple[Node, ...]:
    """Return the nodes that belong to no one card: as /dev has them, else as the kernel says."""
    numbered = {node.path: node for node in control_of_kernel(root)}
    found = (
        _here(root, path) or numbered.get(path) for path in (f"/dev/{one}" for one in _CONTROL)
    )
    return tuple(node for node in found if node is not None)


def control_of_kernel(root: Tree) -> tuple[Node, ...]:
    """Return those nodes with the kernel's numbers; nvidia-modeset, which draws, is not needed."""
    known = majors(root)
    of = {
        "nvidiactl": _control(known, "nvidiactl"),
        "nvidia-uvm": known.get("nvidia-uvm"),
        "nvidia-uvm-tools": known.get("nvidia-uvm"),
    }
    return tuple(
        Node(f"/dev/{name}", major, _MINORS[name])
        for name, major in of.items()
        if major is not None
    )


def channels(root: Tree) -> tuple[Node, ...]:
    """Return the IMEX channels, by which cards of several machines reach each other's memory."""
    major = majors(root).get("nvidia-caps-imex-channels")
    if major is None:
        return ()
    paths = root.glob("/dev/nvidia-caps-imex-channels/channel[0-9]*")
    numbers = sorted(int(path.rpartition("channel")[2]) for path in paths)
    folder = "/dev/nvidia-caps-imex-channels"
    return tuple(Node(f"{folder}/channel{number}", major, number) for number in numbers)


def _gpu_major(known: dict[str, int]) -> int:
    return known.get("nvidia-frontend", known.get("nvidia", _MAJOR))


def _control(known: dict[str, int], name: str) -> int | None:
    return known.get("nvidia-frontend", known.get(name, known.get("nvidia")))


def _here(root: Tree, path: str) -> Node | None:
    try:
        status = root.at(path).stat()
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    return Node(path, os.major(status.st_rdev), os.minor(status.st_rdev))


def _drm(root: Tree, address: str) -> tuple[Node, ...]:
    """Return /dev/dri/card* and renderD* of a card, by its PCI address."""
    nodes = []
    for folder in root.glob(f"/sys/bus/pci/devices/{address.lower()}/drm/*"):
        name = folder.rpartition("/")[2]
        numbers = root.text(f"{folder}/dev").strip().split(":")
        if re.fullmatch(r"card\d+|renderD\d+", name) and len(numbers) == 2:
            nodes.append(Node(f"/dev/dri/{name}", int(numbers[0]), int(numbers[1])))
    return tuple(nodes)


def _instances(root: Tree, minor: int, major: int | None) -> tuple[Instance, ...]:
    if major is None:
        return ()
    found = []
    for folder in root.glob(f"{_CAPABILITIES}/gpu{minor}/mig/gi*/ci*"):
        match = re.search(r"/gi(\d+)/ci(\d+)$", folder)
        above = folder.rpartition("/")[0]
        numbers = [_capability(root, place) for place in (above, folder)]
        if match is not None and None not in numbers:
            nodes = tuple(
                Node(f"/dev/nvidia-caps/nvidia-cap{number}", major, number)
                for number in numbers
                if number is not None
            )
            found.append(Instance(int(match[1]), int(match[2]), nodes))
    return tuple(sorted(found, key=lambda instance: (instance.gpu, instance.compute)))


def _capability(root: Tree, folder: str) -> int | None:
    """Return the minor of the capability's node."""
    match = re.search(r"^DeviceFileMinor:\s*(\d+)", root.text(f"{folder}/access"), re.MULTILINE)
    return None if match is None else int(match[1])
