# SPDX-License-Identifier: Apache-2.0
"""Drivers that are older than those that gpushare supports, and what they lack."""

from __future__ import annotations

from typing import Final

OLDEST_SUPPORTED: Final = 520  # of CUDA 11.8
#: The oldest one whose libraries are compared with ours (tests/c/real_driver), without a card.
OLDEST_LOOKED_UP: Final = 470  # of CUDA 11.4
#: The first with RESERVED (github.com/NVIDIA/nvidia-settings/issues/78).
RESERVED_SINCE: Final = 510
RESERVED: Final = "nvmlDeviceGetMemoryInfo_v2"


def describe_old_driver(version: str) -> str:
    """Return what is known of a driver that is too old to be supported, "" of any other."""
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) >= OLDEST_SUPPORTED:
        return ""
    known = "look-ups tested, never with a card"
    if int(major) < OLDEST_LOOKED_UP:
        known = "older than CUDA 11.4, never tried"
    text = f"driver {version}: {known}; supported from {OLDEST_SUPPORTED} on"
    if int(major) < RESERVED_SINCE:
        text += f"; without {RESERVED}, memory that the driver reserves counts as used"
    return text
