# SPDX-License-Identifier: Apache-2.0
"""Makes a driver ready that is installed: its modules loaded, its device nodes in /dev.

After a boot without a display nobody has done that before the first CUDA program: nvidia-uvm is
loaded by NVIDIA's setuid nvidia-modprobe, where that is installed, and no node of the driver is
udev's to make. Done again it changes nothing; a machine without a card or a driver is left alone.
Source: NVIDIA driver README, "device nodes"; nvidia-modprobe(1); MIG user guide.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpushare.host.driver import nodes
from gpushare.host.driver.nodes import Node
from gpushare.host.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NVIDIA: Final = "0x10de"  # the PCI vendor
_DISPLAY: Final = "0x03"  # the PCI class of cards, with or without a display
_MODULES: Final = ("nvidia", "nvidia-uvm")
_PARAMETERS: Final = "/proc/driver/nvidia/params"
_CAPABILITIES: Final = "/proc/driver/nvidia/capabilities"
_ACCESS: Final = ("mig/config", "mig/monitor", "gpu*/mig/gi*/access", "gpu*/mig/gi*/ci*/access")
_LOAD_SECONDS: Final = 60


@dataclass
class Made:
    """What was done: programs that loaded modules, nodes that were made; and what was not."""

    ran: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Rights:
    """Whose a node is to be. `leave`: the driver was told to make no nodes, so nobody does."""

    mode: int
    uid: int = 0
    gid: int = 0
    leave: bool = False


def make_ready(root: Tree, run: Callable[[Sequence[str]], str] | None = None) -> Made:
    """Load what is not loaded, and make the nodes that are missing.

    `run` runs a program and returns why it failed, "" where it did not.
    """
    made = Made()
    if not has_card(root):
        return made
    known = nodes.majors(root)
    if not known.keys() >= set(_MODULES) and "nvidia-frontend" not in known:
        _load(made, run or _run)
    rights = _of_driver(root)
    if not rights.leave:
        for node in _missing(root):
            _make(root, node, rights, made)
    for node, own in _capabilities(root):
        if not own.leave and not _is_there(root, node):
            _make(root, node, own, made)
    return made


def has_card(root: Tree) -> bool:
    """Whether a card of NVIDIA's is on the PCI bus."""
    return any(
        root.text(f"{folder}/vendor").strip() == NVIDIA
        and root.text(f"{folder}/class").startswith(_DISPLAY)
        for folder in root.glob("/sys/bus/pci/devices/*")
    )


def _load(made: Made, run: Callable[[Sequence[str]], str]) -> None:
    """Load the modules; by NVIDIA's own program, where it is there."""
    program = shutil.which("nvidia-modprobe")
    if program is not None:
        commands = [[program, "-u", "-c", "0"]]
    else:
        commands = [["modprobe", module] for module in _MODULES]
    for command in commands:
        why = run(command)
        if why:
            made.problems.append(f"{' '.join(command)}: {why}")
            return
        made.ran.append(" ".join(command))


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_LOAD_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.strip().replace("\n", "; ")
    return "" if done.returncode == 0 else said or f"exit status {done.returncode}"


def _missing(root: Tree) -> Iterator[Node]:
    """Yield the nodes that the kernel has a driver for and /dev has not."""
    known = nodes.majors(root)
    major = known.get("nvidia-frontend", known.get("nvidia"))
    if major is None:
        return
    wanted = [Node(f"/dev/nvidia{minor}", major, minor) for minor in _minors(root)]
    wanted += nodes.control_of_kernel(root)
    yield from (node for node in wanted if not _is_there(root, node))


def _minors(root: Tree) -> list[int]:
    found = []
    for folder in root.glob("/proc/driver/nvidia/gpus/*"):
        said = re.search(
            r"^Device Minor:\s*(\d+)\s*$", root.text(f"{folder}/information"), re.MULTILINE
        )
        found += [int(said[1])] if said else []
    return sorted(found)


def _of_driver(root: Tree) -> _Rights:
    """Return what the driver was told of its nodes: NVreg_DeviceFileMode and the like."""
    said = _numbers(root, _PARAMETERS)
    return _Rights(
        said.get("DeviceFileMode", 0o666),
        said.get("DeviceFileUID", 0),
        said.get("DeviceFileGID", 0),
        leave=said.get("ModifyDeviceFiles", 1) == 0,
    )


def _capabilities(root: Tree) -> Iterator[tuple[Node, _Rights]]:
    """Yield the nodes by which MIG instances are used."""
    major = nodes.majors(root).get("nvidia-caps")
    if major is None:
        return
    for pattern in _ACCESS:
        for path in root.glob(f"{_CAPABILITIES}/{pattern}"):
            said = _numbers(root, path)
            minor = said.get("DeviceFileMinor")
            if minor is not None:
                leave = said.get("DeviceFileModify", 1) == 0
                node = Node(f"/dev/nvidia-caps/nvidia-cap{minor}", major, minor)
                yield node, _Rights(said.get("DeviceFileMode", 0o444), leave=leave)


def _numbers(root: Tree, path: str) -> dict[str, int]:
    found = re.findall(r"^(\w+):\s*(\d+)\s*$", root.text(path), re.MULTILINE)
    return {name: int(number) for name, number in found}


def _is_there(root: Tree, node: Node) -> bool:
    """Whether /dev has it, with its numbers: they change with the module."""
    try:
        status = root.at(node.path).stat()
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(node.major, node.minor)


def _make(root: Tree, node: Node, rights: _Rights, made: Made) -> None:
    place = root.at(node.path)
    draft = place.with_name(f".{place.name}.gpushare")
    try:
        place.parent.mkdir(mode=0o755, exist_ok=True)
        draft.unlink(missing_ok=True)
        os.mknod(draft, stat.S_IFCHR, os.makedev(node.major, node.minor))
        os.chown(draft, rights.uid, rights.gid)
        draft.chmod(rights.mode)
        draft.replace(place)  # nobody sees it with other rights
    except OSError as error:
        made.problems.append(f"{node.path}: {error.strerror}")
        return
    made.nodes.append(node.path)
