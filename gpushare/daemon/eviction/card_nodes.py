# SPDX-License-Identifier: Apache-2.0
"""Whether a container has the device node of a card: the driver opens it in the moved process."""

from __future__ import annotations

import os
import stat

from gpushare.daemon.placement.model import Card
from gpushare.daemon.store.record import TenantRecord

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def has_card_node(record: TenantRecord, card: Card) -> bool:
    """Whether the first process of a tenant has the node of `card`.

    A host process has all of the machine's. Nothing of the container is followed: its /dev is what
    its runtime has mounted.
    """
    if record.engine == "host":
        return True
    try:
        root = os.open(f"/proc/{record.pid}/root", _DIRECTORY)
    except OSError:
        return False
    try:
        dev = os.open("dev", _DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    except OSError:
        return False
    finally:
        os.close(root)
    try:
        found = os.stat(f"nvidia{card.minor}", dir_fd=dev, follow_symlinks=False)
    except OSError:
        return False
    finally:
        os.close(dev)
    return stat.S_ISCHR(found.st_mode) and os.minor(found.st_rdev) == card.minor
