# SPDX-License-Identifier: Apache-2.0
"""The machine's own GPU, where it has one."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path

from gpushare.host import driver

from .program import Missing

#: Signs of a loaded kernel module; a sandbox may show the nodes and hide the rest.
MODULE = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
SPECS = (Path("/etc/cdi/nvidia.yaml"), Path("/var/run/cdi/nvidia.yaml"))


def real_card() -> Path | None:
    """Return a CDI spec of this machine's driver, None where no NVIDIA driver is loaded.

    The spec that is there already, else one made from the driver itself, in a folder that goes with
    this process. Missing where the kernel has a driver and the rest of it is not to be found.
    """
    if not any(sign.exists() for sign in MODULE):
        return None
    for spec in SPECS:
        if spec.exists():
            return spec
    try:
        found = driver.find(search=os.environ.get("LD_LIBRARY_PATH", ""))
    except driver.DriverMissing as error:
        raise Missing(str(error)) from error
    if not found.cards:
        raise Missing(f"driver {found.version}: the kernel lists no card in /proc/driver/nvidia")
    folder = Path(tempfile.mkdtemp(prefix="gpushare-cdi-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spec = folder / "nvidia.json"
    spec.write_text(json.dumps(found.cdi(), indent=1))
    return spec
