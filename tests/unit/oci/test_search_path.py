# SPDX-License-Identifier: Apache-2.0
"""In which folders a container's programs look for libcuda first."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.oci.rootfs import Rootfs
from gpushare.oci.search_path import searched

ALWAYS = {"/opt/conda/cuda-compat", "/usr/local/nvidia/lib", "/usr/local/nvidia/lib64"}
V2 = "glibc-hwcaps/x86-64-v2"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, set()),
        ({"LD_LIBRARY_PATH": ""}, set()),
        ({"LD_LIBRARY_PATH": ":"}, {"/work", f"/work/{V2}"}),
        ({"LD_LIBRARY_PATH": "/a:/b;/c/"}, {"/a", "/b", "/c", f"/a/{V2}", f"/c/{V2}"}),
        ({"LD_LIBRARY_PATH": ":lib:../up"}, {"/work", "/work/lib", "/up", f"/work/lib/{V2}"}),
        ({"LD_LIBRARY_PATH": "/../../a"}, {"/a"}),
        ({"CONDA_PREFIX": "/env"}, {"/env/cuda-compat"}),
        ({"VLLM_CUDA_COMPATIBILITY_PATH": "/compat"}, {"/compat"}),
        ({"VLLM_CUDA_COMPATIBILITY_PATH": "compat"}, set()),
    ],
)
def test_the_environment_leads_to_folders(
    variables: dict[str, str], wanted: set[str], rootfs: Rootfs
) -> None:
    found = set(searched(variables, "/work", rootfs))
    assert wanted | ALWAYS <= found
    assert {path for path in found - ALWAYS if "hwcaps" not in path} <= wanted


def test_each_release_of_nvidias_hpc_sdk_has_its_own(root: Path, rootfs: Rootfs) -> None:
    sdk = "opt/nvidia/hpc_sdk/Linux_x86_64"
    for folder in ("24.9/cuda/12.6/compat", "25.1/cuda/compat"):
        (root / sdk / folder).mkdir(parents=True)
    found = set(searched({}, "/", rootfs))
    assert {f"/{sdk}/24.9/cuda/12.6/compat", f"/{sdk}/25.1/cuda/compat"} <= found


def test_folders_without_end_are_looked_at_in_part(rootfs: Rootfs) -> None:
    found = searched({"LD_LIBRARY_PATH": ":".join(f"/{n}" for n in range(10_000))}, "/", rootfs)
    assert len(found) < 300
