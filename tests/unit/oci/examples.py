# SPDX-License-Identifier: Apache-2.0
"""Specs and CDI documents as engines and nvidia-ctk write them, shortened."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpushare.oci.rootfs import Rootfs

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
VERSION = "580.159.04"

SETKEY = {"path": "/usr/bin/dockerd", "args": ["libnetwork-setkey", "-exec-root=/run", "4f1c"]}
NVIDIA_HOOK = {
    "path": "/usr/bin/nvidia-container-runtime-hook",
    "args": ["nvidia-container-runtime-hook", "prestart"],
    "env": ["PATH=/usr/bin"],
}
CDI_HOOK = {
    "path": "/usr/bin/nvidia-cdi-hook",
    "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", LIBRARIES],
}
DENY_ALL = {"allow": False, "access": "rwm"}
NULL_RULE = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}


@contextmanager
def opened(root: Path) -> Iterator[Rootfs]:
    """Yield the rootfs of a folder."""
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Rootfs(fd)
    finally:
        os.close(fd)


def docker_spec(*env: str) -> dict[str, Any]:
    """Return what dockerd writes for a container without a GPU; `x-future` is unknown."""
    return {
        "ociVersion": "1.2.0",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["sh", "-c", "true && true"],
            "env": ["PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=all", *env],
            "cwd": "/",
            "x-future": {"b": 1, "a": [1.5, None, "ü"]},
        },
        "root": {"path": "/var/lib/docker/overlay2/4f1c/merged"},
        "hostname": "4f1c",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"]},
            {
                "destination": "/data",
                "type": "bind",
                "source": "/srv/nvidia-models",
                "options": ["rbind"],
            },
        ],
        "hooks": {"prestart": [copy.deepcopy(SETKEY)]},
        "annotations": {"org.example": "kept"},
        "linux": {
            "resources": {"devices": [copy.deepcopy(DENY_ALL), copy.deepcopy(NULL_RULE)]},
            "cgroupsPath": "/docker/4f1c",
            "namespaces": [{"type": "mount"}],
            "maskedPaths": ["/proc/acpi"],
        },
        "x-future": [1, 2, 3],
    }


def node(path: str, minor: int, major: int = 195) -> dict[str, Any]:
    return {"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 438}


def rule(minor: int | None, major: int = 195) -> dict[str, Any]:
    numbers = {"major": major} if minor is None else {"major": major, "minor": minor}
    return {"allow": True, "type": "c", **numbers, "access": "rwm"}


def library_mount(name: str) -> dict[str, Any]:
    return {
        "destination": f"{LIBRARIES}/{name}",
        "type": "bind",
        "source": f"{LIBRARIES}/{name}",
        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
    }


def hook_form(visible: str) -> dict[str, Any]:
    """Return what older Docker writes for `--gpus`."""
    spec = docker_spec(f"NVIDIA_VISIBLE_DEVICES={visible}")
    spec["hooks"]["prestart"].append(copy.deepcopy(NVIDIA_HOOK))
    return spec


def cdi_form(*minors: int) -> dict[str, Any]:
    """Return what newer engines write for CDI devices: edits already applied."""
    spec = docker_spec("NVIDIA_VISIBLE_DEVICES=void")
    spec["linux"]["devices"] = [
        *(node(f"/dev/nvidia{minor}", minor) for minor in minors),
        node("/dev/nvidiactl", 255),
        node("/dev/nvidia-uvm", 0, 508),
        node("/dev/nvidia-uvm-tools", 1, 508),
        node("/dev/dri/renderD128", 128, 226),
    ]
    rules = spec["linux"]["resources"]["devices"]
    rules += [rule(minor) for minor in (*minors, 255)]
    rules += [rule(0, 508), rule(1, 508), rule(128, 226)]
    spec["mounts"] += [
        library_mount(f"libcuda.so.{VERSION}"),
        library_mount(f"libnvidia-glcore.so.{VERSION}"),
        {**library_mount("x"), "destination": "/usr/bin/nvidia-smi"},
    ]
    spec["hooks"]["createContainer"] = [copy.deepcopy(CDI_HOOK)]
    return spec


def cdi_document() -> dict[str, Any]:
    """Return what `nvidia-ctk cdi generate` writes for two cards."""
    names = (
        "libcuda",
        "libnvidia-ml",
        "libnvidia-ptxjitcompiler",
        "libnvidia-opencl",
        "libnvidia-glcore",
    )
    files = [f"{LIBRARIES}/{name}.so.{VERSION}" for name in names]
    files += ["/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control"]
    files += [f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}"]
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    cards = [
        {
            "name": name,
            "containerEdits": {
                "deviceNodes": [
                    {"path": f"/dev/nvidia{index}", "type": "c", "major": 195, "minor": index},
                    {"path": f"/dev/dri/renderD{128 + index}", "major": 226, "minor": 128 + index},
                ]
            },
        }
        for index in (0, 1)
        for name in (str(index), f"GPU-{index}")
    ]
    return {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": cards,
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [
                {"path": "/dev/nvidiactl", "major": 195, "minor": 255},
                {"path": "/dev/nvidia-modeset", "major": 195, "minor": 254},
                {"path": "/dev/nvidia-uvm", "major": 508, "minor": 0},
            ],
            "hooks": [{"hookName": "createContainer", **CDI_HOOK}],
            "mounts": [
                {"hostPath": file, "containerPath": file, "options": options} for file in files
            ],
        },
    }
