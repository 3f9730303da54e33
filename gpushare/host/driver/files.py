# SPDX-License-Identifier: Apache-2.0
"""The files of NVIDIA's driver as installers place them, and their paths in a container.

The names of a driver's libraries end in its version; the folder depends on the packager. In a
container, they are all in one folder that the loader searches, each under the name that programs
request (its SONAME), so that no links or cache entries are needed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from gpushare.host.rooted_tree import RootedTree
from gpushare.oci import elf, ldcache
from gpushare.oci.elf import this_platform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.host.rooted_tree import RootedTree
    from gpushare.oci.elf import Platform

# In addition to the loader's folders: each of the drivers that Debian's alternatives choose from,
# Bottlerocket, NixOS, Talos, the .run installer, Container-Optimized OS, and drivers mounted into a
# container that manages others.
FOLDERS: Final = (
    "/usr/lib/{multiarch}/nvidia/*",
    "/usr/lib/{multiarch}/nvidia",
    "/usr/lib/nvidia/*",
    "/usr/lib/nvidia",
    "/run/opengl-driver/lib",
    "/usr/local/glibc/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/home/kubernetes/bin/nvidia/lib64",
    "/opt/nvidia/lib64",
    "/opt/nvidia/driver/lib64",
    "/opt/nvidia/current/lib64",
    "/opt/nvidia/current/lib",
    "/opt/nvidia/current",
)
_BENEATH: Final = ("", "vdpau/", "gbm/", "tls/", "nvidia/", "nvidia/current/", "nvidia/xorg/")
# Parts of the driver with versions of their own.
_OTHER_LIBRARIES: Final = ("libnvidia-egl-*.so.1", "libnvidia-api.so.1")
_KEEPS_FOLDER: Final = ("vdpau", "gbm")  # plug-ins, loaded from a folder of that name

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
    "/opt/nvidia/current/bin",
    "/usr/libexec/nvidia/tesla/bin",
    "/run/current-system/sw/bin",
    "/usr/local/bin",
)
#: Debian has the programs of each driver in a folder of the same name as its libraries.
_DEBIAN_PROGRAMS: Final = "/usr/lib/nvidia"
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

CACHE: Final = Path("/etc/ld.so.cache")


@dataclass(frozen=True)
class DriverFile:
    """A file of the driver: its paths on the host and in a container; `socket`: or a folder."""

    host_path: str
    container_path: str
    socket: bool = False


def is_library(tree: RootedTree, path: str, platform: Platform) -> bool:
    """Whether the file at `path`, which must not contain links, is a library for this machine.

    A 32-bit library has the same name.
    """
    try:
        return elf.machine(str(tree.at(path))) == platform.elf_machine
    except (OSError, elf.ElfError):
        return False


def folders(platform: Platform) -> tuple[str, ...]:
    """Return the folders to search: the loader's default folders and the packagers'."""
    named = (folder.format(multiarch=platform.multiarch) for folder in FOLDERS)
    return (*platform.library_directories, *named)


def libraries(
    tree: RootedTree, beside: str, version: str, platform: Platform
) -> Iterator[DriverFile]:
    """Yield the libraries of driver `version`; `beside` is the real folder of its libcuda.

    That folder comes first. A file that is found through two paths is yielded once.
    """
    place = loader_folder(tree, platform) or platform.library_directories[0]
    known: set[str] = set()
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
                    if target not in known:
                        known.add(target)
                        yield DriverFile(real, target)
    # Some programs load libcuda without the version.
    if f"{place}/libcuda.so.1" in known and (real := tree.file(f"{beside}/libcuda.so.{version}")):
        yield DriverFile(real, f"{place}/libcuda.so")


def loader_folder(tree: RootedTree, platform: Platform) -> str | None:
    """Return the folder of this tree that the loader searches: the one that contains libc."""
    for directory in platform.library_directories:
        for place in (directory, directory.removeprefix("/usr")):
            if tree.file(f"{place}/libc.so.6"):
                return directory
    return None


def _target(tree: RootedTree, path: str, real: str, place: str) -> str:
    """Return the path in a container of the library found at `path`."""
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


def programs(tree: RootedTree, beside: str) -> Iterator[DriverFile]:
    """Yield the driver's programs, each once; not those of another driver of Debian's."""
    own = f"{_DEBIAN_PROGRAMS}/{PurePosixPath(beside).name}"
    is_debian = "-linux-gnu/nvidia/" in beside
    for name in _PROGRAMS:
        # Its package nvidia-cuda-mps is of the driver in `current`.
        of_current = is_debian and "-mps-" in name and not own.endswith("/current")
        for folder in (own, *_PROGRAM_FOLDERS):
            real = tree.file(f"{folder}/{name}")
            if real is None:
                continue
            of_other = is_debian and real.startswith(f"{_DEBIAN_PROGRAMS}/")
            if real.startswith(f"{own}/") or not (of_current or of_other):
                yield DriverFile(real, f"/usr/bin/{name}")
                break


def firmware(tree: RootedTree, version: str) -> Iterator[DriverFile]:
    """Yield the firmware that the kernel module loads, e.g. gsp_ga10x.bin."""
    custom = tree.text("/sys/module/firmware_class/parameters/path").strip()
    places = [*([f"{custom.rstrip('/')}/nvidia/"] if custom.startswith("/") else []), *_FIRMWARE]
    for place in places:
        files = [path for path in tree.glob(f"{place}{version}/gsp*.bin") if tree.file(path)]
        if files:
            target = "/lib/firmware/nvidia/"
            yield from (DriverFile(path, path.replace(place, target, 1)) for path in files)
            return


def data(tree: RootedTree) -> Iterator[DriverFile]:
    """Yield the files with which OpenCL, EGL, Vulkan and X find the driver."""
    for pattern in _DATA:
        for path in tree.glob(pattern):
            real = tree.file(path)
            if real is not None:
                yield DriverFile(real, path)


def sockets(tree: RootedTree) -> Iterator[DriverFile]:
    """Yield the sockets of the driver's daemons, if they are running."""
    for path in _SOCKETS:
        if tree.real(path) is not None:
            yield DriverFile(path, path, socket=True)


def library_paths(soname: str, *, root: Path = Path("/"), search: str = "") -> list[Path]:
    """Return every file that the loader may find for `soname`, in the loader's order, each once.

    `search` is an LD_LIBRARY_PATH. Two names of the same file count once. An unreadable cache
    counts as empty, as for the loader.
    """
    platform, tree = this_platform(), RootedTree(root.resolve())
    directories = [folder for folder in search.replace(";", ":").split(":") if folder]
    names = _cached(tree, soname, platform.cache_flags)
    defaults = (*platform.library_directories, "/lib64", "/usr/lib", "/lib")
    names += [f"{folder}/{soname}" for folder in defaults]
    paths: dict[Path, None] = {}
    for named in directories:
        name = Path(named) / soname
        if name.is_file():
            paths.setdefault(name.resolve())
    for path in names:
        real = tree.real(path)
        if real is not None and tree.at(real).is_file():
            paths.setdefault(tree.at(real))
    return list(paths)


def _cached(tree: RootedTree, soname: str, flags: int) -> list[str]:
    try:
        cache = ldcache.parse(tree.at(str(CACHE)).read_bytes())
    except (OSError, ldcache.LoaderCacheError):
        return []
    return [
        os.fsdecode(entry.path)
        for entry in cache.entries
        if entry.name == soname.encode() and entry.flags == flags
    ]
