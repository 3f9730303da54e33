# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver of this host: its libraries, programs and device nodes, as a CDI spec.

nvidia-ctk writes such a spec too, where it is installed; this one needs nothing but the driver. Its
files are found as the driver's installer leaves them: `files` has the places.
Source: CDI SPEC.md; /proc/driver/nvidia as the driver's README has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpushare.errors import UserError
from gpushare.host import loader
from gpushare.host.driver import files as driver_files
from gpushare.host.driver import nodes as driver_nodes
from gpushare.host.driver import wsl as driver_wsl
from gpushare.host.driver.files import File
from gpushare.host.driver.nodes import Card, Node
from gpushare.host.tree import Tree
from gpushare.oci import capabilities
from gpushare.oci.platform import this_platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpushare.oci.platform import Platform

CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"
LINKS: Final = Path("/opt/gpushare/driver")
GPU: Final = "nvidia.com/gpu"
CHANNEL: Final = "nvidia.com/imex-channel"

# A driver in a container of its own has its root here (NVIDIA GPU operator).
_CONTAINED: Final = "/run/nvidia/driver"
_VERSION: Final = re.compile(r"libcuda\.so\.([0-9]{3,}(?:\.[0-9]+)+)", re.ASCII)
_MODULE: Final = re.compile(r"Kernel Module(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)", re.ASCII)
# The oldest version that has all that the specs here need, so that older engines read them too:
# device names that begin with a digit.
_CDI_VERSION: Final = "0.5.0"
_OPTIONS: Final = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


class DriverMissing(UserError):
    """This host has no usable NVIDIA driver; says which part is missing and how to get it."""


@dataclass(frozen=True)
class Driver:
    """A driver beneath `root`: a host, or an image that is being built.

    `tree` is where its files call `/`: the root too, but for a driver in a container of its own.
    """

    root: Path
    tree: Tree
    version: str
    files: tuple[File, ...]
    cards: tuple[Card, ...]
    control: tuple[Node, ...]
    channels: tuple[Node, ...] = ()

    @property
    def libraries(self) -> tuple[Path, ...]:
        """The libraries' files on this machine."""
        return tuple(
            self.tree.at(file.host_path)
            for file in self.files
            if re.search(r"\.so(\.[0-9.]+)?$", file.host_path)
        )

    @property
    def programs(self) -> tuple[Path, ...]:
        """The programs' files on this machine."""
        return tuple(
            self.tree.at(file.host_path)
            for file in self.files
            if file.container_path.startswith("/usr/bin/")
        )

    def library(self, soname: str) -> Path:
        """Return the file behind `soname`; DriverMissing when the driver has none."""
        for file in self.files:
            if file.container_path.endswith(f"/{soname}"):
                return self.tree.at(file.host_path)
        raise DriverMissing(f"the driver {self.version} has no {soname} beside {CUDA}")

    def cdi(self) -> dict[str, Any]:
        """Return the driver as a CDI spec: every card by index and UUID, and `all`.

        A MIG instance is named by the kernel's numbers, `0:gi1:ci0` of card 0.
        """
        devices = []
        for card in self.cards:
            devices += [_device(name, card.nodes) for name in (str(card.index), card.uuid)]
            devices += [
                _device(
                    f"{card.index}:gi{instance.gpu}:ci{instance.compute}",
                    (*card.nodes, *instance.nodes),
                )
                for instance in card.instances
            ]
        every = [node for card in self.cards for node in _nodes(card)]
        if every:
            devices.append(_device("all", dict.fromkeys(every)))
        elif any(node.path == driver_wsl.NODE for node in self.control):
            # One node is every card.
            devices.append(_device("all", self.control))
        mounts = [self._mount(file) for file in self.files]
        return {
            "cdiVersion": _CDI_VERSION,
            "kind": GPU,
            "devices": devices,
            "containerEdits": {
                # Where nvidia's own runtime is an engine's default it must not add the driver too.
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                **({"deviceNodes": [_node(node) for node in self.control]} if every else {}),
                "mounts": mounts,
            },
        }

    def channels_cdi(self) -> dict[str, Any] | None:
        """Return the CDI spec of the IMEX channels, None where there are none."""
        if not self.channels:
            return None
        devices = [_device(str(node.minor), (node,)) for node in self.channels]
        return {
            "cdiVersion": _CDI_VERSION,
            "kind": CHANNEL,
            "devices": devices,
            "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
        }

    def parts(self) -> dict[str, int]:
        """Return how many files each capability brings; `other` are those of none."""
        found: dict[str, int] = {}
        for file in self.files:
            name = capabilities.of_file(file.host_path) or "other"
            found[name] = found.get(name, 0) + 1
        return found

    def _mount(self, file: File) -> dict[str, Any]:
        options = [*_OPTIONS, "noexec"] if file.socket else _OPTIONS
        host_path = "/" + str(self.tree.at(file.host_path).relative_to(self.root))
        return {"hostPath": host_path, "containerPath": file.container_path, "options": options}


def find(root: Path = Path("/"), *, search: str = "") -> Driver:
    """Return the driver beneath `root`; DriverMissing when there is none, or half of one.

    `search` is an LD_LIBRARY_PATH, for a driver that is in one folder which only that names.
    """
    # Links of the folder itself are the caller's; those in it are the tree's.
    root = root.resolve()
    platform, host = this_platform(), Tree(root)
    if driver_wsl.is_here(host):
        return _of_wsl(root, host, platform)
    running = kernel_version(root)
    candidates = list(_candidates(root, search, platform))
    if not candidates:
        raise DriverMissing(_why_none(root, search))
    # The loader may know a driver of another version too, a cuda-compat package's say.
    tree, libcuda, version = next(
        (found for found in candidates if found[2] == running), candidates[0]
    )
    beside = libcuda.rpartition("/")[0]
    files = [*driver_files.libraries(tree, beside, version, platform)]
    files += [*driver_files.programs(tree), *driver_files.firmware(tree, version)]
    files += [*driver_files.data(tree)]
    # The daemons' sockets are on the host also where the files are a container's.
    sockets = {file.container_path: file for file in driver_files.sockets(tree)}
    return Driver(
        root=root,
        tree=tree,
        version=version,
        files=(*files, *sockets.values()),
        cards=driver_nodes.cards(host),
        control=driver_nodes.control(host),
        channels=driver_nodes.channels(host),
    )


def kernel_version(root: Path = Path("/")) -> str | None:
    """Return the version of the loaded kernel module, None when none is loaded."""
    host = Tree(root)
    match = _MODULE.search(host.text("/proc/driver/nvidia/version"))
    if match is not None:
        return match[1]
    return host.text("/sys/module/nvidia/version").strip() or None


def stale(spec: dict[str, Any]) -> list[str]:
    """Return the host files that a CDI spec names and that are not there (any more)."""
    edits = [spec.get("containerEdits") or {}]
    edits += [device.get("containerEdits") or {} for device in spec.get("devices") or []]
    mounts = [mount for edit in edits for mount in edit.get("mounts") or []]
    return [mount["hostPath"] for mount in mounts if not Path(mount["hostPath"]).exists()]


def _candidates(root: Path, search: str, platform: Platform) -> Iterator[tuple[Tree, str, str]]:
    """Yield each libcuda that may be the driver's: its tree, real path and version."""
    host = Tree(root)
    seen: set[tuple[Path, str]] = set()
    for tree, name in (*_names(host, search, platform), *_names_in_container(host, platform)):
        real = tree.file(name)
        if real is None or (tree.top, real) in seen:
            continue
        seen.add((tree.top, real))
        match = _VERSION.fullmatch(real.rpartition("/")[2])
        if match is not None and driver_files.is_library(tree, real, platform):
            yield tree, real, match[1]


def _names(host: Tree, search: str, platform: Platform) -> Iterator[tuple[Tree, str]]:
    """Yield the paths under which libcuda may be: by the loader, then in packagers' folders."""
    for path in loader.paths(CUDA, root=host.top, search=search):
        if path.is_relative_to(host.top):
            yield host, "/" + str(path.relative_to(host.top))
    for folder in driver_files.folders(platform):
        yield host, f"{folder}/{CUDA}"
        yield from ((host, path) for path in host.glob(f"{folder}/libcuda.so.[0-9]*"))


def _names_in_container(host: Tree, platform: Platform) -> Iterator[tuple[Tree, str]]:
    contained = Tree(host.at(_CONTAINED))
    if contained.top.is_dir():
        yield from _names(contained, "", platform)


def _why_none(root: Path, search: str) -> str:
    """Return why no driver was found, with what to do."""
    found = loader.paths(CUDA, root=root, search=search)
    host, platform = Tree(root), this_platform()
    if host.glob(f"/usr/lib/{platform.multiarch}/tegra/libcuda.so*") or host.glob(
        f"/usr/lib/{platform.multiarch}/nvidia/libcuda.so.1.*"
    ):
        return (
            "this is a Jetson: its GPU is part of the processor and has no memory of its own, so "
            "there is nothing to share by quota here"
        )
    if found and not found[0].stat().st_size:
        return f"{found[0]} is empty: an image's placeholder, no driver"
    if found:
        return (
            f"{found[0]} is not as NVIDIA's driver installs it (a 64-bit library of this machine "
            "with the driver's version in its name); set driver.cdi in gpushare.yaml"
        )
    return (
        f"the loader finds no {CUDA}: install NVIDIA's driver, or try without a GPU: "
        "gpushare setup --simulate h200"
    )


def _of_wsl(root: Path, host: Tree, platform: Platform) -> Driver:
    files, node = driver_wsl.files(host, platform), driver_wsl.node(host)
    if not any(file.container_path.endswith(f"/{CUDA}") for file in files):
        raise DriverMissing(
            "this is WSL 2, and Windows gave it no libcuda: install NVIDIA's driver for Windows"
        )
    return Driver(root, host, "of Windows", files, (), () if node is None else (node,))


def _nodes(card: Card) -> Iterator[Node]:
    yield from card.nodes
    for instance in card.instances:
        yield from instance.nodes


def _device(name: str, nodes: Iterable[Node]) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"deviceNodes": [_node(node) for node in nodes]}}


def _node(node: Node) -> dict[str, Any]:
    return {"path": node.path, "type": "c", "major": node.major, "minor": node.minor}
