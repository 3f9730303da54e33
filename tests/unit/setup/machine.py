# SPDX-License-Identifier: Apache-2.0
"""A machine with a driver, runc and docker, as files in a folder."""

from __future__ import annotations

from pathlib import Path

from tests.unit.host.layouts import DEBIAN, Host

VERSION = "580.159.04"
UNITS = {
    "gpushared.socket": "[Install]\nWantedBy=sockets.target\n",
    "gpushared.service": "[Service]\nExecStart=/opt/venv/bin/gpushared\n",
}


def make(root: Path) -> Path:
    """Return `root` as a machine with two GPUs, the second of them with minor 0."""
    host = Host(root, VERSION)
    names = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
    host.libraries(DEBIAN, dict.fromkeys(names, "1"))
    host.write(f"{DEBIAN}/libc.so.6")
    host.write("usr/bin/nvidia-smi")
    host.write("usr/bin/runc", "#!/bin/sh\n")
    (root / "usr/bin/runc").chmod(0o755)
    host.write("etc/docker/daemon.json", '{"debug": true}\n')
    host.kernel()
    return root


def write(path: Path, text: str = "") -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
