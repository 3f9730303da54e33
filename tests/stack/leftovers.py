# SPDX-License-Identifier: Apache-2.0
"""Takes away what a stack may have left: mounts, cgroups, what engines make elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def mounts_under(root: Path) -> list[str]:
    """Return the mount points beneath `root`, innermost first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4])
        if point == str(root) or point.startswith(f"{root}/"):
            found.append(point)
    return found[::-1]


def cgroups_named(name: str) -> list[Path]:
    """Return the cgroup directories `name` of every hierarchy, innermost first."""
    found: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.split()[0] in ("cgroup", "cgroup2"):
            top = Path(fields.split()[4]) / name
            found.extend(Path(folder) for folder, _, _ in os.walk(top, topdown=False))
    return found


def kill(cgroup: str) -> None:
    """End what is left of the containers beneath `cgroup`: their shims were faster."""
    for folder in cgroups_named(cgroup):
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def remove(root: Path, cgroup: str) -> None:
    kill(cgroup)
    for point in mounts_under(root):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    for folder in cgroups_named(cgroup):
        with suppress(OSError):  # a process in it has not ended yet, or the kernel was faster
            folder.rmdir()
    shutil.rmtree(root, ignore_errors=True)


#: What containerd, its shims and dockerd make wherever their own folders lie; innermost first.
TRACES = (
    "/run/containerd/s",
    "/run/containerd/fifo",
    "/run/containerd/runc",
    "/run/containerd",
    "/run/docker/plugins",
    "/run/docker",
    "/etc/docker/key.json",
    "/etc/docker",
)


class Traces:
    """Remembers which of TRACES were there, and removes the others again."""

    def __init__(self) -> None:
        self.made = [path for path in map(Path, TRACES) if not path.exists()]

    def remove(self, namespace: str) -> None:
        """Remove what was not there before and nobody else uses by now."""
        shutil.rmtree(f"/run/containerd/runc/{namespace}", ignore_errors=True)
        for path in self.made:
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
