# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver of this host, and its CDI spec.

nvidia-ctk can write such a spec too; this module needs only the driver itself. `files` has the
paths of the driver's files as installers place them.

In WSL 2, the driver belongs to Windows, is mounted at /usr/lib/wsl, and all cards share /dev/dxg.
The libraries in /usr/lib/wsl/lib load others by absolute path from the driver's folder in
/usr/lib/wsl/drivers, which must have the same path in a container.
Source: CDI SPEC.md; the driver's README for /proc/driver/nvidia; "CUDA on WSL User Guide".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpushare.errors import UserError
from gpushare.host.driver import device_nodes as driver_nodes
from gpushare.host.driver import files as driver_files
from gpushare.host.driver.device_nodes import CardNodes, DeviceNode
from gpushare.host.driver.files import DriverFile, loader_folder
from gpushare.host.rooted_tree import RootedTree
from gpushare.oci.driver_files import of_file
from gpushare.oci.elf import this_platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpushare.oci.elf import Platform


CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"
LINKS: Final = Path("/opt/gpushare/driver")
GPU: Final = "nvidia.com/gpu"

# The root of a driver that runs in its own container (NVIDIA GPU operator).
_CONTAINED: Final = "/run/nvidia/driver"
_VERSION: Final = re.compile(r"libcuda\.so\.([0-9]{3,}(?:\.[0-9]+)+)", re.ASCII)
_MODULE: Final = re.compile(r"Kernel Module(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)", re.ASCII)
# The oldest version with everything that these specs use (device names that begin with a digit), so
# that older engines can read them.
_CDI_VERSION: Final = "0.5.0"
_OPTIONS: Final = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


class DriverMissing(UserError):
    """This host has no usable NVIDIA driver; the message names the missing part and the fix."""


@dataclass(frozen=True)
class InstalledDriver:
    """A driver under `root`: a host, or an image that is being built.

    `tree` is the root of its files: `root` too, except for a driver in its own container.
    """

    root: Path
    tree: RootedTree
    version: str
    files: tuple[DriverFile, ...]
    cards: tuple[CardNodes, ...]
    control: tuple[DeviceNode, ...]

    @property
    def libraries(self) -> tuple[Path, ...]:
        """The paths of the libraries on this machine."""
        return tuple(
            self.tree.at(file.host_path)
            for file in self.files
            if re.search(r"\.so(\.[0-9.]+)?$", file.host_path)
        )

    def library(self, soname: str) -> Path:
        """Return the file with `soname`; DriverMissing if the driver has none."""
        for file in self.files:
            if file.container_path.endswith(f"/{soname}"):
                return self.tree.at(file.host_path)
        raise DriverMissing(f"driver {self.version} has {CUDA} but no {soname}")

    def cdi(self) -> dict[str, Any]:
        """Return the driver as a CDI spec: every card by index and UUID, and `all`.

        A MIG instance has the kernel's numbers as its name, for example `0:gi1:ci0` of card 0.
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
        elif any(node.path == WSL_NODE for node in self.control):
            # All cards share one node.
            devices.append(_device("all", self.control))
        mounts = [self._mount(file) for file in self.files]
        return {
            "cdiVersion": _CDI_VERSION,
            "kind": GPU,
            "devices": devices,
            "containerEdits": {
                # If NVIDIA's runtime is the engine's default, it must not add the driver again.
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                **({"deviceNodes": [_node(node) for node in self.control]} if every else {}),
                "mounts": mounts,
            },
        }

    def parts(self) -> dict[str, int]:
        """Return the number of files of each capability; `other` counts files without one."""
        counts: dict[str, int] = {}
        for file in self.files:
            name = of_file(file.host_path) or "other"
            counts[name] = counts.get(name, 0) + 1
        return counts

    def _mount(self, file: DriverFile) -> dict[str, Any]:
        options = [*_OPTIONS, "noexec"] if file.socket else _OPTIONS
        host_path = "/" + str(self.tree.at(file.host_path).relative_to(self.root))
        return {"hostPath": host_path, "containerPath": file.container_path, "options": options}


def find(root: Path = Path("/"), *, search: str = "") -> InstalledDriver:
    """Return the driver under `root`; DriverMissing if there is none, or an incomplete one.

    `search` is an LD_LIBRARY_PATH, for a driver in a folder that nothing else names.
    """
    # Links to the folder are followed on the host, links in the folder within it.
    root = root.resolve()
    platform, host = this_platform(), RootedTree(root)
    if is_wsl(host):
        return _of_wsl(root, host, platform)
    running = kernel_version(root)
    candidates = list(_candidates(root, search, platform))
    if not candidates:
        raise DriverMissing(_why_none(root, search))
    # The loader may also find another version, for example of a cuda-compat package.
    tree, libcuda, version = next(
        (candidate for candidate in candidates if candidate[2] == running), candidates[0]
    )
    beside = libcuda.rpartition("/")[0]
    files = [*driver_files.libraries(tree, beside, version, platform)]
    files += [*driver_files.programs(tree, beside), *driver_files.firmware(tree, version)]
    files += [*driver_files.data(tree)]
    # The daemons' sockets are on the host even if the files are in a driver container.
    sockets = {file.container_path: file for file in driver_files.sockets(tree)}
    return InstalledDriver(
        root=root,
        tree=tree,
        version=version,
        files=(*files, *sockets.values()),
        cards=driver_nodes.card_nodes(host),
        control=driver_nodes.control_nodes(host),
    )


def kernel_version(root: Path = Path("/")) -> str | None:
    """Return the version of the loaded kernel module, None if none is loaded."""
    host = RootedTree(root)
    match = _MODULE.search(host.text("/proc/driver/nvidia/version"))
    if match is not None:
        return match[1]
    return host.text("/sys/module/nvidia/version").strip() or None


def missing_files(spec: dict[str, Any]) -> list[str]:
    """Return the host files in a CDI spec that do not exist (any more)."""
    edits = [spec.get("containerEdits") or {}]
    edits += [device.get("containerEdits") or {} for device in spec.get("devices") or []]
    mounts = [mount for edit in edits for mount in edit.get("mounts") or []]
    return [mount["hostPath"] for mount in mounts if not Path(mount["hostPath"]).exists()]


def _candidates(
    root: Path, search: str, platform: Platform
) -> Iterator[tuple[RootedTree, str, str]]:
    """Yield each libcuda that may belong to the driver: its tree, real path and version."""
    host = RootedTree(root)
    known: set[tuple[Path, str]] = set()
    for tree, name in (*_names(host, search, platform), *_names_in_container(host, platform)):
        real = tree.file(name)
        if real is None or (tree.top, real) in known:
            continue
        known.add((tree.top, real))
        match = _VERSION.fullmatch(real.rpartition("/")[2])
        if match is not None and driver_files.is_library(tree, real, platform):
            yield tree, real, match[1]


def _names(host: RootedTree, search: str, platform: Platform) -> Iterator[tuple[RootedTree, str]]:
    """Yield the possible paths of libcuda: the loader's first, then those of packagers."""
    for path in driver_files.library_paths(CUDA, root=host.top, search=search):
        if path.is_relative_to(host.top):
            yield host, "/" + str(path.relative_to(host.top))
    for folder in driver_files.folders(platform):
        yield host, f"{folder}/{CUDA}"
        yield from ((host, path) for path in host.glob(f"{folder}/libcuda.so.[0-9]*"))


def _names_in_container(host: RootedTree, platform: Platform) -> Iterator[tuple[RootedTree, str]]:
    contained = RootedTree(host.at(_CONTAINED))
    if contained.top.is_dir():
        yield from _names(contained, "", platform)


def _why_none(root: Path, search: str) -> str:
    """Return why no driver was found, with a fix."""
    paths = driver_files.library_paths(CUDA, root=root, search=search)
    host, platform = RootedTree(root), this_platform()
    if host.glob(f"/usr/lib/{platform.multiarch}/tegra/libcuda.so*") or host.glob(
        f"/usr/lib/{platform.multiarch}/nvidia/libcuda.so.1.*"
    ):
        return (
            "this is a Jetson: its GPU is part of the processor and has no dedicated memory, so "
            "gpushare cannot share it by quota"
        )
    if paths and not paths[0].stat().st_size:
        return f"{paths[0]} is empty: a placeholder of an image, not a driver"
    if paths:
        return (
            f"{paths[0]} was not installed by NVIDIA's driver (which installs a 64-bit library "
            "with the driver's version in its name). Set driver.cdi_spec in gpushare.yaml"
        )
    if version := kernel_version(root):
        places = ", ".join(driver_files.folders(platform))
        return (
            f"the kernel module nvidia {version} is loaded, but {CUDA} is neither in the loader's "
            f"cache nor in {places}. If the libraries are in another folder, set driver.cdi_spec "
            "in gpushare.yaml to a CDI specification that names them"
        )
    return (
        f"{CUDA} was not found. Install NVIDIA's driver, or try gpushare without a GPU: "
        "gpushare setup --simulate h200"
    )


def _of_wsl(root: Path, host: RootedTree, platform: Platform) -> InstalledDriver:
    files, node = _wsl_files(host, platform), _wsl_node(host)
    if not any(file.container_path.endswith(f"/{CUDA}") for file in files):
        raise DriverMissing(
            "this is WSL 2 without libcuda from Windows. Install NVIDIA's driver for Windows"
        )
    return InstalledDriver(root, host, "of Windows", files, (), () if node is None else (node,))


def _nodes(card: CardNodes) -> Iterator[DeviceNode]:
    yield from card.nodes
    for instance in card.instances:
        yield from instance.nodes


def _device(name: str, nodes: Iterable[DeviceNode]) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"deviceNodes": [_node(node) for node in nodes]}}


def _node(node: DeviceNode) -> dict[str, Any]:
    return {"path": node.path, "type": "c", "major": node.major, "minor": node.minor}


WSL_NODE: Final = "/dev/dxg"
_MISC: Final = 10  # Linux, Documentation/admin-guide/devices.txt
_LIBRARIES: Final = "/usr/lib/wsl/lib"
_NAMES: Final = (
    "libcuda.so.1",
    "libcuda.so",
    "libdxcore.so",
    "libnvidia-ml.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvidia-ngx.so.1",
    "libnvcuvid.so.1",
    "libnvdxdlkernels.so",
    "libnvoptix.so.1",
    "libnvwgf2umx.so",
)


def is_wsl(host: RootedTree) -> bool:
    """Whether this is WSL 2 with a Windows graphics driver."""
    return host.at(_LIBRARIES).is_dir() and host.at(WSL_NODE).exists()


def _wsl_node(host: RootedTree) -> DeviceNode | None:
    """Return the device node, None if its number is unknown."""
    match = re.search(r"^\s*(\d+) dxg$", host.text("/proc/misc"), re.MULTILINE)
    return None if match is None else DeviceNode(WSL_NODE, _MISC, int(match[1]))


def _wsl_files(host: RootedTree, platform: Platform) -> tuple[DriverFile, ...]:
    """Return the libraries, nvidia-smi, and the folders from which they load other libraries."""
    files = []
    place = loader_folder(host, platform) or _LIBRARIES
    for name in _NAMES:
        real = host.file(f"{_LIBRARIES}/{name}")
        if real is not None:
            files.append(DriverFile(real, f"{place}/{name}"))
    smi = host.file(f"{_LIBRARIES}/nvidia-smi")
    if smi is not None:
        files.append(DriverFile(smi, "/usr/bin/nvidia-smi"))
    stores = {path.rpartition("/")[0] for path in host.glob("/usr/lib/wsl/drivers/*/libcuda.so*")}
    files += [DriverFile(store, store) for store in sorted(stores)]
    return tuple(files)
