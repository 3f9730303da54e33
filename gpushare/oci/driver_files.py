# SPDX-License-Identifier: Apache-2.0
"""The driver's files as the host's CDI spec lists them, and which of them a container gets.

NVIDIA_DRIVER_CAPABILITIES says which parts of the driver a container requests. The parts are known
by the names of their files, so that any CDI spec of a driver can be divided: the spec itself says
nothing of it.
Source: the variable's values and what each brings, NVIDIA container toolkit, "Driver Capabilities".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

from gpushare.oci import elf
from gpushare.oci.cdi import CdiDeviceNode, CdiEdits, CdiError, CdiMount, CdiSpec

VARIABLE: Final = "NVIDIA_DRIVER_CAPABILITIES"

COMPUTE: Final = "compute"
UTILITY: Final = "utility"
VIDEO: Final = "video"
GRAPHICS: Final = "graphics"
DISPLAY: Final = "display"
NGX: Final = "ngx"
COMPAT32: Final = "compat32"
ALL: Final = (COMPUTE, UTILITY, VIDEO, GRAPHICS, DISPLAY, NGX, COMPAT32)
DEFAULT: Final = frozenset({COMPUTE, UTILITY})
# These use the card past libcuda's exported names: no interposer mediates them.
UNINTERPOSED: Final = frozenset({VIDEO, GRAPHICS, DISPLAY, NGX, COMPAT32})

# By file name; the first that matches. A library is named without `.so` and what follows.
_FILES: Final = tuple(
    (capability, re.compile(pattern, re.ASCII))
    for capability, pattern in (
        (UTILITY, r"libnvidia-(ml|cfg|nscq|sandboxutils)"),
        (UTILITY, r"nvidia-(smi|debugdump|persistenced|imex|imex-ctl)|nv-fabricmanager"),
        (UTILITY, r"sandboxutils-filelist\.json"),
        (COMPUTE, r"libcuda|libcudadebugger|libcuda_loader|libnvidia-opencl|nvidia\.icd"),
        (COMPUTE, r"libnvidia-(gpucomp|nvvm(70)?|pkcs11(-openssl3)?|ptxjitcompiler|compiler)"),
        (COMPUTE, r"libnvidia-(fatbinaryloader|tileiras|allocator|nvcudart_hybrid64)"),
        (COMPUTE, r"nvidia-cuda-mps-(control|server)|nvidia-mps"),
        (VIDEO, r"libnvcuvid|libvdpau_nvidia|libnvidia-(encode|opticalflow)"),
        (NGX, r"libnvidia-ngx|nvidia-ngx-updater|_?nvngx(_dlssg)?\.dll"),
        (DISPLAY, r"nvidia_drv|libglxserver_nvidia|nvidia-drm-outputclass\.conf"),
        (GRAPHICS, r"lib(GLX|EGL|GLESv1_CM|GLESv2)_nvidia|libnvoptix|nvoptix\.bin"),
        (
            GRAPHICS,
            r"libnvidia-(eglcore|glcore|glsi|glvkspirv|tls|rtcore|cbl|fbc|ifr|gtk[23]|api|egl-[a-z]+)",
        ),
        (
            GRAPHICS,
            r"libnvidia-(vulkan-producer|present|wayland-client|vksc-core)",
        ),
        (GRAPHICS, r"nvidia-drm_gbm|nvidia-application-profiles-.*|nvidia(_icd|_layers).*\.json"),
        (GRAPHICS, r"[0-9]+_nvidia[a-z0-9_]*\.json|nvidia_icd_vksc\.json"),
    )
)
_FOLDERS_OF_32_BIT: Final = ("/i386-linux-gnu/", "/usr/lib32/", "/lib32/", "/usr/lib/i686/")
_GRAPHICS_NODES: Final = re.compile(r"/dev/(dri/.*|nvidia-modeset)", re.ASCII)


@dataclass(frozen=True)
class DriverCapabilities:
    """The content of the variable. `unknown` are words of it that are no capability."""

    wanted: frozenset[str] = DEFAULT
    unknown: tuple[str, ...] = ()

    @property
    def uninterposed(self) -> tuple[str, ...]:
        """The capabilities that bypass the interposer, in the order of the documentation."""
        return tuple(name for name in ALL if name in self.wanted & UNINTERPOSED)


def requested_capabilities(variables: Mapping[str, str]) -> DriverCapabilities:
    """Return what a process's environment asks for: compute and utility where it says nothing."""
    words = [word.strip() for word in variables.get(VARIABLE, "").split(",")]
    words = [word for word in words if word]
    if not words:
        return DriverCapabilities()
    if "all" in words:
        return DriverCapabilities(frozenset(ALL))
    unknown = tuple(dict.fromkeys(word for word in words if word not in ALL))
    return DriverCapabilities(frozenset(words) & frozenset(ALL), unknown)


def of_file(path: str) -> str | None:
    """Return the capability that the driver's file at `path` belongs to.

    None is one that belongs to none: firmware, sockets, and what a newer driver brings.
    """
    if any(folder in path for folder in _FOLDERS_OF_32_BIT):
        return COMPAT32
    name = PurePosixPath(path).name
    stem = name.partition(".so")[0]
    for capability, pattern in _FILES:
        if pattern.fullmatch(stem) or pattern.fullmatch(name):
            return capability
    return None


def is_node_of_graphics(path: str) -> bool:
    """Whether only graphics and display need the device node at `path`."""
    return _GRAPHICS_NODES.fullmatch(path) is not None


CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"
SIMULATED_DEVICE: Final = "/dev/gpushare-sim"

_LIBRARY: Final = re.compile(r"lib[^/]+\.so(\.[0-9][0-9A-Za-z.]*)?", re.ASCII)

# What a shared container gets beside the two filtered libraries: the libraries of "compute" and
# "utility" that call only driver interfaces which are counted. OpenCL, graphics, video and OptiX
# use the card past libcuda's exported names.
_COMPUTE: Final = re.compile(
    r"libcudadebugger|libdxcore"
    r"|libnvidia-(cfg|gpucomp|nvvm(70)?|pkcs11(-openssl3)?|ptxjitcompiler|sandboxutils)"
)
_PROGRAMS: Final = ("nvidia-smi", "nvidia-debugdump")
# Of the capabilities those of MIG instances: 1 configures them, 2 monitors all of them.
_SHARED_NODES: Final = re.compile(
    r"/dev/(nvidia[0-9]+|nvidiactl|nvidia-uvm|nvidia-uvm-tools|dxg"
    r"|nvidia-caps/nvidia-cap([3-9]|[1-9][0-9]+))",
    re.ASCII,
)
_OPENCL: Final = frozenset({"libnvidia-opencl", "nvidia.icd"})
# Sockets of the driver's own daemons: they exist as long as the daemons run.
_SOCKETS: Final = frozenset({"socket", "nvidia-mps"})


@dataclass(frozen=True)
class Library:
    """A shared library of the driver: its file on the host, and where a container has it.

    `soname` is the name that programs ask for; `container_path` mostly ends in a version.
    """

    host_path: str
    container_path: str
    soname: str

    @cached_property
    def directory(self) -> str:
        """The folder of the container that it is in."""
        return str(PurePosixPath(self.container_path).parent)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Its names besides its SONAME: in the CDI spec, and with its version."""
        paths = (self.container_path, self.host_path)
        return tuple(dict.fromkeys(PurePosixPath(path).name for path in paths))

    @property
    def stem(self) -> str:
        """The name up to `.so`."""
        return self.soname.partition(".so")[0]

    def is_native(self, driver: DriverFiles) -> bool:
        """Whether it lies beside libcuda: no 32-bit one, no plug-in in a folder of its own."""
        return self.directory == driver.cuda.directory

    @property
    def is_filtered(self) -> bool:
        """Whether a filter takes its place in a shared container."""
        return self.soname in (CUDA, NVML)

    @property
    def is_compute(self) -> bool:
        """Whether a shared container gets it as it is."""
        return is_compute(self.stem)

    def is_wanted(self, wanted: frozenset[str]) -> bool:
        """Whether it belongs to one of the capabilities `wanted`, or to none."""
        return _is_wanted(self.container_path, wanted)


@dataclass(frozen=True)
class DriverFiles:
    """A driver: its CDI spec, and the libraries among its mounts."""

    cdi: CdiSpec
    cuda: Library
    nvml: Library
    libraries: tuple[Library, ...]

    @property
    def directories(self) -> tuple[str, ...]:
        """The folders that the CDI spec puts the two filtered libraries in."""
        return tuple(dict.fromkeys((self.cuda.directory, self.nvml.directory)))

    @cached_property
    def _sockets(self) -> tuple[CdiMount, ...]:
        mounts = self.cdi.everything.mounts
        return tuple(m for m in mounts if PurePosixPath(m.host_path).name in _SOCKETS)

    def served(self) -> tuple[str, ...]:
        """Return the sockets of the driver's daemons that run now."""
        return tuple(mount.host_path for mount in self._sockets if _is_served(mount))


def from_cdi(cdi: CdiSpec) -> DriverFiles:
    """Return the driver in `cdi`; CdiError where it has no libcuda or libnvidia-ml.

    Reads the libraries' SONAMEs from the host's files; what cannot be read keeps its file name.
    """
    libraries = tuple(
        _library(mount)
        for mount in cdi.everything.mounts
        if _LIBRARY.fullmatch(PurePosixPath(mount.container_path).name)
    )
    return DriverFiles(cdi, _one(libraries, CUDA, cdi), _one(libraries, NVML, cdi), libraries)


def with_compat(driver: DriverFiles, folder: Path) -> DriverFiles:
    """Return `driver` with the libraries in `folder` in place of its own: those of a cuda-compat.

    CdiError where one of them is not what its name says.
    """
    copies = {library.stem: library for library in _copies(driver, folder)}
    if "libcuda" not in copies or copies["libcuda"].soname != CUDA:
        raise CdiError(f"{folder} has no {CUDA}")
    kept = tuple(library for library in driver.libraries if library.stem not in copies)
    return DriverFiles(driver.cdi, copies["libcuda"], driver.nvml, (*copies.values(), *kept))


def _copies(driver: DriverFiles, folder: Path) -> Iterator[Library]:
    for path in sorted(folder.iterdir()):
        try:
            soname = elf.soname(str(path))
        except elf.ElfError as error:
            raise CdiError(str(error)) from error
        if soname is None or not _LIBRARY.fullmatch(soname):
            raise CdiError(f"{path} is not a library that can be looked for")
        if path.name.partition(".so")[0] == soname.partition(".so")[0]:
            yield Library(str(path), f"{driver.cuda.directory}/{soname}", soname)


def is_compute(stem: str) -> bool:
    """Whether a library named `stem`.so is one that libcuda of the same version loads."""
    return _COMPUTE.fullmatch(stem) is not None


def shared_libraries(driver: DriverFiles, extra: frozenset[str]) -> tuple[Library, ...]:
    """Return the libraries, the two filtered ones apart, that a shared container gets.

    `extra` are the capabilities that go past the interposer and that the node's policy allows.
    """
    return tuple(
        library
        for library in driver.libraries
        if library.is_native(driver)
        and not library.is_filtered
        and (library.is_compute or _is_extra(library.container_path, library.stem, extra))
    )


def shared_files(
    edits: CdiEdits, driver: DriverFiles, extra: frozenset[str]
) -> tuple[CdiMount, ...]:
    """Return the mounts, libraries beside libcuda apart, that a shared container gets."""
    return tuple(
        mount
        for mount in other_files(edits, driver)
        if (name := PurePosixPath(mount.container_path).name) in _PROGRAMS
        or mount.container_path.startswith(("/dev/", "/usr/lib/wsl/"))
        or _is_extra(mount.container_path, name, extra)
    )


def shared_nodes(edits: CdiEdits, extra: frozenset[str]) -> tuple[CdiDeviceNode, ...]:
    """Return the device nodes that a shared container gets."""
    shows = extra & {GRAPHICS, DISPLAY}
    return tuple(
        node
        for node in edits.nodes
        if _SHARED_NODES.fullmatch(node.path) or (shows and is_node_of_graphics(node.path))
    )


def other_files(edits: CdiEdits, driver: DriverFiles) -> tuple[CdiMount, ...]:
    """Return all mounts except the libraries next to libcuda, and sockets without a daemon."""
    native = {lib.container_path for lib in driver.libraries if lib.is_native(driver)}
    return tuple(
        mount for mount in edits.mounts if mount.container_path not in native and _is_served(mount)
    )


def wanted_files(
    edits: CdiEdits, driver: DriverFiles, wanted: frozenset[str]
) -> tuple[CdiMount, ...]:
    """Return those of `other_files` that belong to the capabilities `wanted`, or to none."""
    files = other_files(edits, driver)
    return tuple(mount for mount in files if _is_wanted(mount.container_path, wanted))


def wanted_nodes(edits: CdiEdits, wanted: frozenset[str]) -> tuple[CdiDeviceNode, ...]:
    """Return the device nodes for the capabilities `wanted`."""
    shows = wanted & {GRAPHICS, DISPLAY}
    return tuple(node for node in edits.nodes if shows or not is_node_of_graphics(node.path))


def _is_wanted(path: str, wanted: frozenset[str]) -> bool:
    capability = of_file(path)
    return capability is None or capability in wanted


def _is_extra(path: str, name: str, extra: frozenset[str]) -> bool:
    if name in _OPENCL:
        # It has no capability of its own: only a request for all capabilities includes it.
        return frozenset(ALL) & UNINTERPOSED <= extra
    return of_file(path) in extra


def _is_served(mount: CdiMount) -> bool:
    """Whether the mount is no socket, or a socket of a running daemon."""
    if PurePosixPath(mount.host_path).name not in _SOCKETS:
        return True
    return Path(mount.host_path).exists()


def _library(mount: CdiMount) -> Library:
    name = PurePosixPath(mount.container_path).name
    for known in (CUDA, NVML):
        # By name: a spec may be read where its libraries are not (tests, another machine).
        if name.startswith(known.removesuffix(".1")):
            return Library(mount.host_path, mount.container_path, known)
    try:
        return Library(mount.host_path, mount.container_path, elf.soname(mount.host_path) or name)
    except (OSError, elf.ElfError):
        return Library(mount.host_path, mount.container_path, name)


def _one(libraries: tuple[Library, ...], soname: str, cdi: CdiSpec) -> Library:
    matches = [library for library in libraries if library.soname == soname]
    if not matches:
        raise CdiError(f"{cdi.kind} mounts no {soname}: it is not a driver's CDI spec")
    return min(matches, key=_unlikeliness)


def _unlikeliness(library: Library) -> int:
    """Rank a 64-bit library before its 32-bit one: nvidia-ctk lists both where there are both."""
    try:
        elf.machine(library.host_path)
    except elf.ElfError:
        return 3
    except OSError:
        # Not on this machine: by its folder. Where there is a lib64, lib is for 32 bits.
        if of_file(library.container_path) == COMPAT32:
            return 3
        return 2 if library.directory in {"/usr/lib", "/lib"} else 1
    return 0


def simulator_env(files: DriverFiles) -> dict[str, str]:
    """Return the variable by which a host process finds a simulated driver's device."""
    for mount in files.cdi.everything.mounts:
        if mount.container_path == SIMULATED_DEVICE:
            return {"GPUSHARE_SIM_DEVICE": mount.host_path}
    return {}
