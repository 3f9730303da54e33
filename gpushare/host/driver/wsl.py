# SPDX-License-Identifier: Apache-2.0
"""The driver in WSL 2: it is Windows', mounted at /usr/lib/wsl, and every card is /dev/dxg.

What is in /usr/lib/wsl/lib loads the rest by absolute path from the driver's folder beneath
/usr/lib/wsl/drivers, which is where it is on the host.
Source: NVIDIA, "CUDA on WSL User Guide".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpushare.host.driver.files import File, loader_folder
from gpushare.host.driver.nodes import Node

if TYPE_CHECKING:
    from gpushare.host.tree import Tree
    from gpushare.oci.platform import Platform

NODE: Final = "/dev/dxg"
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


def is_here(host: Tree) -> bool:
    """Whether this is WSL 2 with a graphics driver of Windows."""
    return host.at(_LIBRARIES).is_dir() and host.at(NODE).exists()


def node(host: Tree) -> Node | None:
    """Return the one device node, None where the kernel does not say its number."""
    match = re.search(r"^\s*(\d+) dxg$", host.text("/proc/misc"), re.MULTILINE)
    return None if match is None else Node(NODE, _MISC, int(match[1]))


def files(host: Tree, platform: Platform) -> tuple[File, ...]:
    """Return the libraries, nvidia-smi, and the driver's folders that they load the rest from."""
    found = []
    place = loader_folder(host, platform) or _LIBRARIES
    for name in _NAMES:
        real = host.file(f"{_LIBRARIES}/{name}")
        if real is not None:
            found.append(File(real, f"{place}/{name}"))
    smi = host.file(f"{_LIBRARIES}/nvidia-smi")
    if smi is not None:
        found.append(File(smi, "/usr/bin/nvidia-smi"))
    stores = {path.rpartition("/")[0] for path in host.glob("/usr/lib/wsl/drivers/*/libcuda.so*")}
    found += [File(store, store) for store in sorted(stores)]
    return tuple(found)
