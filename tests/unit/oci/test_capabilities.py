# SPDX-License-Identifier: Apache-2.0
"""Which parts of the driver NVIDIA_DRIVER_CAPABILITIES brings."""

from __future__ import annotations

import pytest

from gpushare.oci import driver_files
from gpushare.oci.driver_files import DriverCapabilities


@pytest.mark.parametrize("value", ["", " ", ",", None])
def test_without_the_variable_it_is_compute_and_utility(value: str | None) -> None:
    asked = driver_files.requested_capabilities(
        {} if value is None else {driver_files.VARIABLE: value}
    )
    assert asked == DriverCapabilities(frozenset({"compute", "utility"}))


def test_all_is_everything_that_there_is() -> None:
    asked = driver_files.requested_capabilities({driver_files.VARIABLE: "compute,all"})
    assert asked.uninterposed == ("video", "graphics", "display", "ngx", "compat32")


def test_an_unknown_capability_is_reported_separately() -> None:
    asked = driver_files.requested_capabilities({driver_files.VARIABLE: "video, compute,vdieo"})
    assert asked == DriverCapabilities(frozenset({"video", "compute"}), ("vdieo",))


@pytest.mark.parametrize(
    ("path", "capability"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "compute"),
        ("/usr/lib64/libnvidia-nvvm.so.4", "compute"),
        ("/etc/OpenCL/vendors/nvidia.icd", "compute"),
        ("/usr/lib64/libnvidia-ml.so.1", "utility"),
        ("/usr/bin/nvidia-smi", "utility"),
        ("/usr/bin/nvidia-cuda-mps-server", "compute"),
        ("/usr/lib64/libnvidia-encode.so.580.95.05", "video"),
        ("/usr/lib64/vdpau/libvdpau_nvidia.so.1", "video"),
        ("/usr/lib64/libnvidia-ngx.so.1", "ngx"),
        ("/usr/lib64/libnvidia-egl-wayland.so.1", "graphics"),
        ("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "graphics"),
        ("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", "graphics"),
        ("/usr/lib64/xorg/modules/drivers/nvidia_drv.so", "display"),
        ("/usr/lib/i386-linux-gnu/libcuda.so.580.95.05", "compat32"),
        ("/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin", None),
        ("/run/nvidia-persistenced/socket", None),
        ("/usr/lib64/libnvidia-of-tomorrow.so.1", None),
    ],
)
def test_a_file_implies_its_capability(path: str, capability: str | None) -> None:
    assert driver_files.of_file(path) == capability
