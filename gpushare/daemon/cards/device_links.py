# SPDX-License-Identifier: Apache-2.0
"""/dev/char/MAJOR:MINOR of NVIDIA's nodes, which no other program makes.

systemd finds a device that a container may use by this link when it writes the device rules anew,
at every `systemctl daemon-reload`; without it the running container loses the GPU. udev makes the
links of devices in sysfs, and NVIDIA's are not there.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.oci.cdi import CdiDeviceNode
from gpushare.oci.driver_files import DriverFiles

FOLDER: Final = Path("/dev/char")


def link_devices(files: DriverFiles, folder: Path = FOLDER) -> list[str]:
    """Make the links of the driver's nodes that this host has; return the names of new ones."""
    made = []
    for node in dict.fromkeys(files.cdi.everything.nodes):
        number = _number(node)
        if number is None:
            continue
        place = folder / f"{os.major(number)}:{os.minor(number)}"
        try:
            if _leads_to(place, number):
                continue
            if not folder.is_dir():
                folder.mkdir()
                folder.chmod(0o755)
            draft = folder / f".{secrets.token_hex(8)}"
            draft.symlink_to(os.path.relpath(node.host_path, folder))
            draft.replace(place)
        except OSError as error:
            log("device-link-failed", "warning", link=str(place), error=str(error))
            continue
        made.append(place.name)
    if made:
        log("device-links-created", links=made)
    return made


def _number(node: CdiDeviceNode) -> int | None:
    """Return the numbers of the host's own node, None where it has none or another's."""
    try:
        status = Path(node.host_path).stat()
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    recorded = (node.major, node.minor)
    real = (os.major(status.st_rdev), os.minor(status.st_rdev))
    return status.st_rdev if recorded in {(None, None), real} else None


def _leads_to(place: Path, number: int) -> bool:
    try:
        return place.stat().st_rdev == number
    except OSError:
        return False
