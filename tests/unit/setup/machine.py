# SPDX-License-Identifier: Apache-2.0
"""A machine with a driver, runc and docker, as files in a folder."""

from __future__ import annotations

from pathlib import Path

from tests.unit.host import elf

VERSION = "580.159.04"
UUIDS = (
    "GPU-11111111-0000-4000-8000-000000000000",
    "GPU-22222222-0000-4000-8000-000000000000",
)

UNITS = {
    "gpushared.socket": "[Install]\nWantedBy=sockets.target\n",
    "gpushared.service": "[Service]\nExecStart=/opt/venv/bin/gpushared\n",
}


def make(root: Path) -> Path:
    """Return `root` as a machine with two GPUs, the second of them with minor 0."""
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        (libraries / f"{name}.so.{VERSION}").write_bytes(elf.library(f"{name}.so.1"))
        (libraries / f"{name}.so.1").symlink_to(f"{name}.so.{VERSION}")
    (libraries / "libc.so.6").write_text("libc")
    write(root / "usr/bin/nvidia-smi", "smi")
    write(root / "usr/bin/runc", "#!/bin/sh\n")
    (root / "usr/bin/runc").chmod(0o755)
    write(root / "etc/docker/daemon.json", '{"debug": true}\n')
    write(root / "sys/module/nvidia/version", f"{VERSION}\n")
    write(
        root / "proc/devices",
        "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n",
    )
    for place, (uuid, minor) in enumerate(zip(UUIDS, (1, 0), strict=True)):
        write(
            root / f"proc/driver/nvidia/gpus/0000:0{place}:00.0/information",
            f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n",
        )
    return root


def write(path: Path, text: str) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
