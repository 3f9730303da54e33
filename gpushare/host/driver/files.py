# SPDX-License-Identifier: Apache-2.0
"""Where an installer left the files of NVIDIA's driver, and what they are called in a container.

The libraries of one driver end in its version; which folder they are in is up to whoever packaged
them. In a container they lie flat in one folder that the loader searches, each under the name that
programs ask for (its SONAME), so that nothing has to be linked or cached there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from gpushare.oci import elf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.host.tree import Tree
    from gpushare.oci.platform import Platform

# Beside the loader's own folders. Debian's alternatives, the .run installer, Container-Optimized OS
# and drivers that are mounted into a container that manages others.
FOLDERS: Final = (
    "/usr/lib/{multiarch}/nvidia/current",
    "/usr/lib/{multiarch}/nvidia",
    "/usr/lib/nvidia",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/home/kubernetes/bin/nvidia/lib64",
    "/opt/nvidia/lib64",
    "/opt/nvidia/driver/lib64",
)
_BENEATH: Final = ("", "vdpau/", "gbm/", "tls/", "nvidia/", "nvidia/current/", "nvidia/xorg/")
# Parts of the driver with versions of their own.
_OTHER_LIBRARIES: Final = ("libnvidia-egl-*.so.1", "libnvidia-api.so.1")
_KEEPS_FOLDER: Final = ("vdpau", "gbm")  # plug-ins, looked for in a folder of that name

_PROGRAMS: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nv-fabricmanager",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_PROGRAM_FOLDERS: Final = (
    "/usr/bin",
    "/bin",
    "/usr/sbin",
    "/usr/local/nvidia/bin",
    "/home/kubernetes/bin/nvidia/bin",
    "/opt/nvidia/bin",
    "/opt/nvidia/driver/bin",
)
_FIRMWARE: Final = (
    "/lib/firmware/nvidia/",
    "/usr/lib/firmware/nvidia/",
    "/home/kubernetes/bin/nvidia/firmware/nvidia/",
)
_DATA: Final = (
    "/etc/OpenCL/vendors/nvidia.icd",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/egl/egl_external_platform.d/*_nvidia*.json",
    "/usr/share/vulkan/icd.d/nvidia_icd*.json",
    "/usr/share/vulkan/implicit_layer.d/nvidia_layers*.json",
    "/usr/share/vulkansc/icd.d/nvidia_icd_vksc.json",
    "/etc/vulkan/icd.d/nvidia_icd*.json",
    "/etc/vulkan/implicit_layer.d/nvidia_layers*.json",
    "/usr/share/nvidia/nvoptix.bin",
    "/usr/share/nvidia/nvidia-application-profiles-*",
    "/usr/share/nvidia/files.d/sandboxutils-filelist.json",
    "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
    "/usr/lib64/xorg/modules/drivers/nvidia_drv.so",
    "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
_SOCKETS: Final = (
    "/run/nvidia-persistenced/socket",
    "/run/nvidia-fabricmanager/socket",
    "/tmp/nvidia-mps",  # noqa: S108 - CUDA's own default, MPS documentation
)


@dataclass(frozen=True)
class File:
    """A file of the driver: its path on the host, and in a container. `socket`: or a folder."""

    host_path: str
    container_path: str
    socket: bool = False


def is_library(tree: Tree, path: str, platform: Platform) -> bool:
    """Whether the file at `path`, without links, is a library of this machine's kind.

    A 32-bit one has the same name.
    """
    try:
        return elf.machine(str(tree.at(path))) == platform.elf_machine
    except (OSError, elf.ElfError):
        return False


def folders(platform: Platform) -> tuple[str, ...]:
    """Return the folders to look into: where the loader looks by itself, and the packagers'."""
    named = (folder.format(multiarch=platform.multiarch) for folder in FOLDERS)
    return (*platform.library_directories, *named)


def libraries(tree: Tree, beside: str, version: str, platform: Platform) -> Iterator[File]:
    """Yield the libraries of driver `version`; `beside` is where its libcuda really is.

    The folder of libcuda comes first. A file that is found by two paths is yielded once.
    """
    place = loader_folder(tree, platform) or beside
    seen: set[str] = set()
    for folder in dict.fromkeys((beside, *folders(platform))):
        for beneath in _BENEATH:
            patterns = [f"lib*.so.{version}"]
            patterns += ["nvidia-drm_gbm.so"] if beneath == "gbm/" else []
            patterns += _OTHER_LIBRARIES if not beneath else []
            for pattern in patterns:
                for path in tree.glob(f"{folder}/{beneath}{pattern}"):
                    real = tree.file(path)
                    if real is None or not is_library(tree, real, platform):
                        continue
                    target = _target(tree, path, real, place)
                    if target not in seen:
                        seen.add(target)
                        yield File(real, target)
    # Some programs leave the version out.
    if f"{place}/libcuda.so.1" in seen and (real := tree.file(f"{beside}/libcuda.so.{version}")):
        yield File(real, f"{place}/libcuda.so")


def loader_folder(tree: Tree, platform: Platform) -> str | None:
    """Return the folder of this tree that the loader searches: the one where libc is."""
    for directory in platform.library_directories:
        for place in (directory, directory.removeprefix("/usr")):
            if tree.file(f"{place}/libc.so.6"):
                return directory
    return None


def _target(tree: Tree, path: str, real: str, place: str) -> str:
    """Return what a container calls the library that is found at `path`."""
    folder, _, name = path.rpartition("/")
    try:
        soname = elf.soname(str(tree.at(real))) or name
    except (OSError, elf.ElfError):
        soname = name
    last = PurePosixPath(folder).name
    if last in _KEEPS_FOLDER:
        return f"{place}/{last}/{name if last == 'gbm' else soname}"
    if last == "xorg":
        return f"{place}/nvidia/xorg/{name}"
    return f"{place}/{soname}"


def programs(tree: Tree) -> Iterator[File]:
    """Yield the driver's programs, each once."""
    for name in _PROGRAMS:
        for folder in _PROGRAM_FOLDERS:
            real = tree.file(f"{folder}/{name}")
            if real is not None:
                yield File(real, f"/usr/bin/{name}")
                break


def firmware(tree: Tree, version: str) -> Iterator[File]:
    """Yield the firmware that the kernel module loads, e.g. gsp_ga10x.bin."""
    told = tree.text("/sys/module/firmware_class/parameters/path").strip()
    places = [*([f"{told.rstrip('/')}/nvidia/"] if told.startswith("/") else []), *_FIRMWARE]
    for place in places:
        files = [path for path in tree.glob(f"{place}{version}/gsp*.bin") if tree.file(path)]
        if files:
            target = "/lib/firmware/nvidia/"
            yield from (File(path, path.replace(place, target, 1)) for path in files)
            return


def data(tree: Tree) -> Iterator[File]:
    """Yield what tells the loaders of OpenCL, EGL, Vulkan and X of the driver."""
    for pattern in _DATA:
        for path in tree.glob(pattern):
            real = tree.file(path)
            if real is not None:
                yield File(real, path)


def sockets(tree: Tree) -> Iterator[File]:
    """Yield what the driver's own daemons are spoken to by, where they run."""
    for path in _SOCKETS:
        if tree.real(path) is not None:
            yield File(path, path, socket=True)
