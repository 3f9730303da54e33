# SPDX-License-Identifier: Apache-2.0
"""The driver's files as the host's CDI spec lists them, and which of them a container gets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from gpushare.oci import elf
from gpushare.oci.cdi import CdiEdits, CdiError, CdiMount, CdiSpec, Node

CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"

_LIBRARY: Final = re.compile(r"lib[^/]+\.so(\.[0-9][0-9A-Za-z.]*)?", re.ASCII)

# What a shared container gets beside the two filtered libraries: the parts of "compute" and
# "utility" that call no driver interface which is not counted. OpenCL, graphics, video and OptiX
# reach the card by other ways than libcuda's exported names.
_COMPUTE: Final = re.compile(
    r"libcudadebugger"
    r"|libnvidia-(cfg|gpucomp|nvvm(70)?|pkcs11(-openssl3)?|ptxjitcompiler|sandboxutils)"
)
_PROGRAMS: Final = ("nvidia-smi", "nvidia-debugdump")
_SHARED_NODES: Final = re.compile(r"/dev/(nvidia[0-9]+|nvidiactl|nvidia-uvm|nvidia-uvm-tools)")


@dataclass(frozen=True)
class Library:
    """A shared library of the driver: its file on the host, and where a container has it.

    `soname` is the name that programs ask for; `container_path` mostly ends in a version.
    """

    host_path: str
    container_path: str
    soname: str

    @property
    def directory(self) -> str:
        """The folder of the container that it is in."""
        return str(PurePosixPath(self.container_path).parent)

    @property
    def name(self) -> str:
        """The file name that the CDI spec gives it, mostly with the driver's version."""
        return PurePosixPath(self.container_path).name

    @property
    def stem(self) -> str:
        """The name up to `.so`."""
        return self.soname.partition(".so")[0]

    def is_native(self, driver: Driver) -> bool:
        """Whether it lies beside libcuda: no 32-bit one, no plug-in in a folder of its own."""
        return self.directory == driver.cuda.directory

    @property
    def is_filtered(self) -> bool:
        """Whether a filter takes its place in a shared container."""
        return self.soname in (CUDA, NVML)

    @property
    def is_compute(self) -> bool:
        """Whether a shared container gets it as it is."""
        return _COMPUTE.fullmatch(self.stem) is not None


@dataclass(frozen=True)
class Driver:
    """A driver: its CDI spec, and the libraries among its mounts."""

    cdi: CdiSpec
    cuda: Library
    nvml: Library
    libraries: tuple[Library, ...]

    @property
    def directories(self) -> tuple[str, ...]:
        """The folders that the CDI spec puts the two filtered libraries in."""
        return tuple(dict.fromkeys((self.cuda.directory, self.nvml.directory)))


def from_cdi(cdi: CdiSpec) -> Driver:
    """Return the driver in `cdi`; CdiError where it has no libcuda or libnvidia-ml.

    Reads the libraries' SONAMEs from the host's files; what cannot be read keeps its file name.
    """
    libraries = tuple(
        _library(mount)
        for mount in cdi.everything.mounts
        if _LIBRARY.fullmatch(PurePosixPath(mount.container_path).name)
    )
    return Driver(cdi, _one(libraries, CUDA, cdi), _one(libraries, NVML, cdi), libraries)


def shared_files(edits: CdiEdits) -> tuple[CdiMount, ...]:
    """Return the mounts, libraries apart, that a shared container gets."""
    return tuple(
        mount
        for mount in edits.mounts
        if PurePosixPath(mount.container_path).name in _PROGRAMS
        or mount.container_path.startswith("/dev/")
    )


def shared_nodes(edits: CdiEdits) -> tuple[Node, ...]:
    """Return the device nodes that a shared container gets: none for graphics or modesetting."""
    return tuple(node for node in edits.nodes if _SHARED_NODES.fullmatch(node.path))


def other_files(edits: CdiEdits, driver: Driver) -> tuple[CdiMount, ...]:
    """Return all mounts but the libraries that lie beside libcuda."""
    native = {lib.container_path for lib in driver.libraries if lib.is_native(driver)}
    return tuple(mount for mount in edits.mounts if mount.container_path not in native)


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
    found = [library for library in libraries if library.soname == soname]
    if not found:
        raise CdiError(f"{cdi.kind} mounts no {soname}: it is not a driver's CDI spec")
    # A 64-bit library beside its 32-bit one: nvidia-ctk lists both where both are installed.
    return next((lib for lib in found if "/i386-" not in lib.container_path), found[0])
