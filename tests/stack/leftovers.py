# SPDX-License-Identifier: Apache-2.0
"""Takes away what a stopped stack may have left: mounts under its folder, cgroups of its name."""

from __future__ import annotations

import os
import re
import shutil
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


def remove(root: Path, cgroup: str) -> None:
    for point in mounts_under(root):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    for folder in cgroups_named(cgroup):
        with suppress(OSError):  # a process in it has not ended yet, or the kernel was faster
            folder.rmdir()
    shutil.rmtree(root, ignore_errors=True)
