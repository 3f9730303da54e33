# SPDX-License-Identifier: Apache-2.0
"""The device nodes of NVIDIA's driver, with their current numbers.

The kernel assigns the majors of nvidia-uvm and nvidia-caps when the modules are loaded, so they may
change at a reboot: /proc/devices lists them.
Source: NVIDIA driver README, "device nodes"; MIG user guide, "Device Nodes and Capabilities".
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpushare.host.rooted_tree import RootedTree

_CONTROL: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_MINORS: Final = {"nvidiactl": 255, "nvidia-uvm": 0, "nvidia-uvm-tools": 1}
_MAJOR: Final = 195  # Linux, Documentation/admin-guide/devices.txt
_CAPABILITIES: Final = "/proc/driver/nvidia/capabilities"


@dataclass(frozen=True)
class DeviceNode:
    """A device node; its numbers are known even if it is missing in /dev."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True)
class Instance:
    """A MIG instance as the kernel numbers it: GPU instance, and compute instance within it.

    `nodes` are the two capabilities that give a process access to it.
    """

    gpu: int
    compute: int
    nodes: tuple[DeviceNode, ...]


@dataclass(frozen=True)
class CardNodes:
    """One GPU as the kernel module lists it. `nodes` are its own, including those of graphics."""

    index: int  # in the order of PCI addresses, as NVML counts
    uuid: str
    minor: int
    address: str = ""  # on the PCI bus
    nodes: tuple[DeviceNode, ...] = ()
    instances: tuple[Instance, ...] = ()


def device_majors(root: RootedTree) -> dict[str, int]:
    """Return the majors of character devices by name, from /proc/devices."""
    lines = root.text("/proc/devices").partition("Block devices:")[0].splitlines()
    pairs = [line.split() for line in lines]
    return {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()}


def card_nodes(root: RootedTree) -> tuple[CardNodes, ...]:
    """Return the usable GPUs: in a container, the module also lists the host's other GPUs."""
    present = set(root.glob("/dev/nvidia[0-9]*"))
    known = device_majors(root)
    found: list[CardNodes] = []
    for folder in root.glob("/proc/driver/nvidia/gpus/*"):
        fields = dict(
            re.findall(
                r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", root.text(f"{folder}/information"), re.MULTILINE
            )
        )
        minor = fields.get("Device Minor", "")
        path = f"/dev/nvidia{minor}"
        if not minor.isdigit() or "GPU UUID" not in fields or (present and path not in present):
            continue
        address = folder.rpartition("/")[2]
        found.append(
            CardNodes(
                index=len(found),
                uuid=fields["GPU UUID"],
                minor=int(minor),
                address=address,
                nodes=(DeviceNode(path, _gpu_major(known), int(minor)), *_drm(root, address)),
                instances=_instances(root, int(minor), known.get("nvidia-caps")),
            )
        )
    return tuple(found)


def control_nodes(root: RootedTree) -> tuple[DeviceNode, ...]:
    """Return the nodes that belong to no card, from /dev, or otherwise from the kernel."""
    numbered = {node.path: node for node in kernel_control_nodes(root)}
    found = (
        _here(root, path) or numbered.get(path) for path in (f"/dev/{one}" for one in _CONTROL)
    )
    return tuple(node for node in found if node is not None)


def kernel_control_nodes(root: RootedTree) -> tuple[DeviceNode, ...]:
    """Return those nodes with the kernel's numbers, without nvidia-modeset, which draws."""
    known = device_majors(root)
    of = {
        "nvidiactl": _control(known, "nvidiactl"),
        "nvidia-uvm": known.get("nvidia-uvm"),
        "nvidia-uvm-tools": known.get("nvidia-uvm"),
    }
    return tuple(
        DeviceNode(f"/dev/{name}", major, _MINORS[name])
        for name, major in of.items()
        if major is not None
    )


def channel_nodes(root: RootedTree) -> tuple[DeviceNode, ...]:
    """Return the IMEX channels, with which cards access the memory of cards in other machines."""
    major = device_majors(root).get("nvidia-caps-imex-channels")
    if major is None:
        return ()
    paths = root.glob("/dev/nvidia-caps-imex-channels/channel[0-9]*")
    numbers = sorted(int(path.rpartition("channel")[2]) for path in paths)
    folder = "/dev/nvidia-caps-imex-channels"
    return tuple(DeviceNode(f"{folder}/channel{number}", major, number) for number in numbers)


def _gpu_major(known: dict[str, int]) -> int:
    return known.get("nvidia-frontend", known.get("nvidia", _MAJOR))


def _control(known: dict[str, int], name: str) -> int | None:
    return known.get("nvidia-frontend", known.get(name, known.get("nvidia")))


def _here(root: RootedTree, path: str) -> DeviceNode | None:
    try:
        status = root.at(path).stat()
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    return DeviceNode(path, os.major(status.st_rdev), os.minor(status.st_rdev))


def _drm(root: RootedTree, address: str) -> tuple[DeviceNode, ...]:
    """Return /dev/dri/card* and renderD* of a card, by its PCI address."""
    nodes = []
    for folder in root.glob(f"/sys/bus/pci/devices/{address.lower()}/drm/*"):
        name = folder.rpartition("/")[2]
        numbers = root.text(f"{folder}/dev").strip().split(":")
        if re.fullmatch(r"card\d+|renderD\d+", name) and len(numbers) == 2:
            nodes.append(DeviceNode(f"/dev/dri/{name}", int(numbers[0]), int(numbers[1])))
    return tuple(nodes)


def _instances(root: RootedTree, minor: int, major: int | None) -> tuple[Instance, ...]:
    if major is None:
        return ()
    found = []
    for folder in root.glob(f"{_CAPABILITIES}/gpu{minor}/mig/gi*/ci*"):
        match = re.search(r"/gi(\d+)/ci(\d+)$", folder)
        above = folder.rpartition("/")[0]
        numbers = [_capability(root, place) for place in (above, folder)]
        if match is not None and None not in numbers:
            nodes = tuple(
                DeviceNode(f"/dev/nvidia-caps/nvidia-cap{number}", major, number)
                for number in numbers
                if number is not None
            )
            found.append(Instance(int(match[1]), int(match[2]), nodes))
    return tuple(sorted(found, key=lambda instance: (instance.gpu, instance.compute)))


def _capability(root: RootedTree, folder: str) -> int | None:
    """Return the minor of the capability's node."""
    match = re.search(r"^DeviceFileMinor:\s*(\d+)", root.text(f"{folder}/access"), re.MULTILINE)
    return None if match is None else int(match[1])
