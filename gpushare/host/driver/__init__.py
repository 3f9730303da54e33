# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver of this host, and the CDI spec that it makes."""

from gpushare.host.driver.found import (
    CHANNEL,
    CUDA,
    GPU,
    LINKS,
    NVML,
    Driver,
    DriverMissing,
    find,
    kernel_version,
    stale,
)

__all__ = [
    "CHANNEL",
    "CUDA",
    "GPU",
    "LINKS",
    "NVML",
    "Driver",
    "DriverMissing",
    "find",
    "kernel_version",
    "stale",
]
