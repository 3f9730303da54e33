# SPDX-License-Identifier: Apache-2.0
"""Where a container's programs find libcuda before the loader's own folders: by their environment.

glibc looks in LD_LIBRARY_PATH first (ld.so(8)): its parts are between `:` or `;`, an empty or
relative one begins at the working directory, and in each, folders of glibc-hwcaps come first.
Others name folders of NVIDIA's cuda-compat, which their programs put in front themselves. An RPATH,
and what a program sets later, cannot be known.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare.oci.rootfs import Rootfs

# An image decides how much there is to look at.
_MOST_FOLDERS: Final = 64
_MOST_RELEASES: Final = 8
#: glibc-hwcaps of x86-64 (glibc, sysdeps/x86_64/dl-hwcaps_subdirs.c); aarch64 has none.
_HWCAPS: Final = tuple(f"glibc-hwcaps/x86-64-v{level}" for level in (4, 3, 2))
#: conda-forge's cuda-compat; what images for NVIDIA's runtime search; vLLM's setting.
_NAMED: Final = ("/opt/conda/cuda-compat", "/usr/local/nvidia/lib", "/usr/local/nvidia/lib64")
_CONDA: Final = "CONDA_PREFIX"
_VLLM: Final = "VLLM_CUDA_COMPATIBILITY_PATH"
_HPC_SDK: Final = "/opt/nvidia/hpc_sdk"


def searched(variables: Mapping[str, str], directory: str, rootfs: Rootfs) -> tuple[str, ...]:
    """Return absolute folders, as they are written, in which programs look for libcuda.

    `variables` and `directory` are the process's environment and working directory; of `rootfs`,
    the releases of NVIDIA's HPC SDK are listed.
    """
    path = variables.get("LD_LIBRARY_PATH", "")
    parts = re.split("[:;]", path) if path else []
    folders = [
        posixpath.normpath(posixpath.join("/", directory, part)) for part in parts[:_MOST_FOLDERS]
    ]
    hardware = [f"{folder}/{part}" for folder in folders for part in _HWCAPS]
    if prefix := variables.get(_CONDA):
        folders.append(f"{prefix}/cuda-compat")
    if named := variables.get(_VLLM):
        folders.append(named)
    every = (*folders, *hardware, *_NAMED, *_hpc_sdk(rootfs))
    return tuple(dict.fromkeys(folder for folder in every if folder.startswith("/")))


def _hpc_sdk(rootfs: Rootfs) -> Iterator[str]:
    """Yield /opt/nvidia/hpc_sdk/Linux_x86_64/RELEASE/cuda[/VERSION]/compat of each release."""
    for system in itertools.islice(rootfs.names(_HPC_SDK), 2):
        for release in itertools.islice(rootfs.names(f"{_HPC_SDK}/{system}"), _MOST_RELEASES):
            cuda = f"{_HPC_SDK}/{system}/{release}/cuda"
            versions = itertools.islice(rootfs.names(cuda), _MOST_RELEASES)
            yield from (f"{cuda}/{version}compat" for version in ("", *(f"{v}/" for v in versions)))
