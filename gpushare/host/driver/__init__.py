# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver of this host, and its CDI spec."""

from gpushare.host.driver.installed import (
    CHANNEL,
    CUDA,
    GPU,
    LINKS,
    NVML,
    DriverMissing,
    InstalledDriver,
    find,
    kernel_version,
    missing_files,
)

__all__ = [
    "CHANNEL",
    "CUDA",
    "GPU",
    "LINKS",
    "NVML",
    "DriverMissing",
    "InstalledDriver",
    "find",
    "kernel_version",
    "missing_files",
]
