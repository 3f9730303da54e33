# SPDX-License-Identifier: Apache-2.0
"""The clocks of the daemon: none that an administrator or NTP can set backwards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boottime() -> float:
    """Return seconds since boot, suspend included: the ledger's deadlines survive a restart."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return what names this boot of the machine (random(4))."""
    return _BOOT_ID.read_text(encoding="ascii").strip()
