# SPDX-License-Identifier: Apache-2.0
"""The device nodes of NVIDIA's driver, with their current numbers.

The kernel assigns the majors of nvidia-uvm and nvidia-caps when the modules are loaded, so they may
change at a reboot: /proc/devices lists them.
Source: NVIDIA driver README, "device nodes"; MIG user guide, "Device Nodes and Capabilities".
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpushare.host.rooted_tree import RootedTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    cards: list[CardNodes] = []
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
        cards.append(
            CardNodes(
                index=len(cards),
                uuid=fields["GPU UUID"],
                minor=int(minor),
                address=address,
                nodes=(DeviceNode(path, _gpu_major(known), int(minor)), *_drm(root, address)),
                instances=_instances(root, int(minor), known.get("nvidia-caps")),
            )
        )
    return tuple(cards)


def control_nodes(root: RootedTree) -> tuple[DeviceNode, ...]:
    """Return the nodes that belong to no card, from /dev, or otherwise from the kernel."""
    numbered = {node.path: node for node in kernel_control_nodes(root)}
    nodes = (
        _here(root, path) or numbered.get(path) for path in (f"/dev/{name}" for name in _CONTROL)
    )
    return tuple(node for node in nodes if node is not None)


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
    instances = []
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
            instances.append(Instance(int(match[1]), int(match[2]), nodes))
    return tuple(sorted(instances, key=lambda instance: (instance.gpu, instance.compute)))


def _capability(root: RootedTree, folder: str) -> int | None:
    """Return the minor of the capability's node."""
    match = re.search(r"^DeviceFileMinor:\s*(\d+)", root.text(f"{folder}/access"), re.MULTILINE)
    return None if match is None else int(match[1])


# --- prepares an installed driver: loads its modules and creates its device nodes in /dev ---
#
# After a boot without a display, this happens only when the first CUDA program starts: NVIDIA's
# setuid nvidia-modprobe, if installed, loads nvidia-uvm, and udev creates none of the driver's
# nodes. The preparation is idempotent, and does nothing on a machine without a card or a driver.
# Source: NVIDIA driver README, "device nodes"; nvidia-modprobe(1); MIG user guide.

NVIDIA: Final = "0x10de"  # the PCI vendor
_DISPLAY: Final = "0x03"  # the PCI class of cards, with or without a display
_MODULES: Final = ("nvidia", "nvidia-uvm")
_PARAMETERS: Final = "/proc/driver/nvidia/params"
_ACCESS: Final = ("mig/config", "mig/monitor", "gpu*/mig/gi*/access", "gpu*/mig/gi*/ci*/access")
_LOAD_SECONDS: Final = 60


@dataclass
class PreparedNodes:
    """The result: commands that loaded modules, nodes that were created, and problems."""

    ran: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Rights:
    """The mode and owner of a node. `leave`: the driver is configured to create no nodes."""

    mode: int
    uid: int = 0
    gid: int = 0
    leave: bool = False


def prepare_driver(
    root: RootedTree, run: Callable[[Sequence[str]], str] | None = None
) -> PreparedNodes:
    """Load missing modules, and create missing nodes.

    `run` runs a program and returns the reason for its failure, "" for success.
    """
    prepared = PreparedNodes()
    if not has_card(root):
        return prepared
    known = device_majors(root)
    if not known.keys() >= set(_MODULES) and "nvidia-frontend" not in known:
        _load(prepared, run or _run)
    rights = _of_driver(root)
    if not rights.leave:
        for node in _missing(root):
            _make(root, node, rights, prepared)
    for node, own in _capabilities(root):
        if not own.leave and not _is_there(root, node):
            _make(root, node, own, prepared)
    return prepared


def has_card(root: RootedTree) -> bool:
    """Whether an NVIDIA card is on the PCI bus."""
    return any(
        root.text(f"{folder}/vendor").strip() == NVIDIA
        and root.text(f"{folder}/class").startswith(_DISPLAY)
        for folder in root.glob("/sys/bus/pci/devices/*")
    )


def _load(prepared: PreparedNodes, run: Callable[[Sequence[str]], str]) -> None:
    """Load the modules, with NVIDIA's own program if it is installed."""
    program = shutil.which("nvidia-modprobe")
    if program is not None:
        commands = [[program, "-u", "-c", "0"]]
    else:
        commands = [["modprobe", module] for module in _MODULES]
    for command in commands:
        why = run(command)
        if why and program is not None:  # it prints no reason
            reason = run(["modprobe", "nvidia"])
            why = f"{why}; modprobe nvidia: {reason}" if reason else why
        if why:
            prepared.problems.append(f"{' '.join(command)}: {why}")
            return
        prepared.ran.append(" ".join(command))


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_LOAD_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    message = done.stderr.strip().replace("\n", "; ")
    return "" if done.returncode == 0 else message or f"exit status {done.returncode}"


def _missing(root: RootedTree) -> Iterator[DeviceNode]:
    """Yield the nodes that the kernel has a driver for and that are missing in /dev."""
    known = device_majors(root)
    major = known.get("nvidia-frontend", known.get("nvidia"))
    if major is None:
        return
    wanted = [DeviceNode(f"/dev/nvidia{minor}", major, minor) for minor in _minors(root)]
    wanted += kernel_control_nodes(root)
    yield from (node for node in wanted if not _is_there(root, node))


def _minors(root: RootedTree) -> list[int]:
    minors = []
    for folder in root.glob("/proc/driver/nvidia/gpus/*"):
        match = re.search(
            r"^Device Minor:\s*(\d+)\s*$", root.text(f"{folder}/information"), re.MULTILINE
        )
        minors += [int(match[1])] if match else []
    return sorted(minors)


def _of_driver(root: RootedTree) -> _Rights:
    """Return the driver's settings for its nodes: NVreg_DeviceFileMode and related parameters."""
    settings = _numbers(root, _PARAMETERS)
    return _Rights(
        settings.get("DeviceFileMode", 0o666),
        settings.get("DeviceFileUID", 0),
        settings.get("DeviceFileGID", 0),
        leave=settings.get("ModifyDeviceFiles", 1) == 0,
    )


def _capabilities(root: RootedTree) -> Iterator[tuple[DeviceNode, _Rights]]:
    """Yield the nodes that give access to MIG instances."""
    major = device_majors(root).get("nvidia-caps")
    if major is None:
        return
    for pattern in _ACCESS:
        for path in root.glob(f"{_CAPABILITIES}/{pattern}"):
            settings = _numbers(root, path)
            minor = settings.get("DeviceFileMinor")
            if minor is not None:
                leave = settings.get("DeviceFileModify", 1) == 0
                node = DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", major, minor)
                yield node, _Rights(settings.get("DeviceFileMode", 0o444), leave=leave)


def _numbers(root: RootedTree, path: str) -> dict[str, int]:
    rows = re.findall(r"^(\w+):\s*(\d+)\s*$", root.text(path), re.MULTILINE)
    return {name: int(number) for name, number in rows}


def _is_there(root: RootedTree, node: DeviceNode) -> bool:
    """Whether /dev has the node with these numbers, which change with the module."""
    try:
        status = root.at(node.path).stat()
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(node.major, node.minor)


def _make(root: RootedTree, node: DeviceNode, rights: _Rights, prepared: PreparedNodes) -> None:
    place = root.at(node.path)
    draft = place.with_name(f".{place.name}.gpushare")
    try:
        if not place.parent.is_dir():
            place.parent.mkdir()
            place.parent.chmod(0o755)  # whatever the umask is
        draft.unlink(missing_ok=True)
        os.mknod(draft, stat.S_IFCHR, os.makedev(node.major, node.minor))
        os.chown(draft, rights.uid, rights.gid)
        draft.chmod(rights.mode)
        draft.replace(place)  # the node never appears with other permissions
    except OSError as error:
        prepared.problems.append(f"{node.path}: {error.strerror}")
        return
    prepared.nodes.append(node.path)
