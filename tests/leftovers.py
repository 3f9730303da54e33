# SPDX-License-Identifier: Apache-2.0
"""Takes away what a stack may have left: mounts, cgroups, what engines make elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final


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
    thaw(cgroup)


def thaw(cgroup: str) -> None:
    """Thaw what is beneath `cgroup`: in v1 a frozen process ends only then."""
    for folder in cgroups_named(cgroup):
        for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with suppress(OSError):
                if (folder / name).exists():
                    (folder / name).write_text(value)


def unmount(root: Path) -> None:
    for point in mounts_under(root):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def end_mps(root: Path) -> None:
    """End the MPS control daemons beneath `root`: they outlive gpushared on purpose."""
    wanted = f"CUDA_MPS_PIPE_DIRECTORY={root}/".encode()
    for process in Path("/proc").glob("[0-9]*"):  # a name below it would be looked at by glob
        with suppress(OSError):  # it has ended
            environment = (process / "environ").read_bytes()
            if any(one.startswith(wanted) for one in environment.split(b"\0")):
                os.kill(int(process.name), signal.SIGKILL)


def remove(root: Path, cgroup: str) -> None:
    kill(cgroup)
    end_mps(root)
    unmount(root)
    for folder in cgroups_named(cgroup):
        with suppress(OSError):  # a process in it has not ended yet, or the kernel was faster
            folder.rmdir()
    shutil.rmtree(root, ignore_errors=True)


#: The variable with the file in which a run notes its folders, for tests/supervise.py.
NOTES: Final = "GPUSHARE_TEST_NOTES"


def note(folder: Path) -> Path:
    """Note `folder`, whose name is also a cgroup, for the clean-up after this run."""
    _append(f"folder {folder}")
    return folder


def note_mounts(folder: Path) -> None:
    """Note `folder`, in which mounts may be left; its files are to stay."""
    _append(f"mounts {folder}")


def _append(line: str) -> None:
    if path := os.environ.get(NOTES):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _noted(notes: Path, kind: str) -> list[Path]:
    """Return the folders in `notes` that are still there."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    found = (Path(line.partition(" ")[2]) for line in lines if line.startswith(kind))
    return [path for path in found if path.exists()]


def thaw_noted(notes: Path) -> None:
    """Thaw what the run has frozen."""
    for folder in _noted(notes, "folder"):
        thaw(folder.name)


def remove_noted(notes: Path, traces: Traces) -> None:
    """Remove what the run has left of its folders, its mounts and `traces`."""
    for folder in _noted(notes, "mounts"):
        unmount(folder)
    for folder in _noted(notes, "folder"):
        remove(folder, folder.name)
        traces.remove(folder.name)


@contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """Make a folder in /var/tmp, noted; its files are executable and its path is short."""
    with TemporaryDirectory(prefix=prefix, dir="/var/tmp") as name:
        yield note(Path(name))


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
        self.made = [path for path in map(Path, TRACES) if _is_missing(path)]

    def remove(self, namespace: str) -> None:
        """Remove what was not there before and no other run uses by now."""
        shutil.rmtree(f"/run/containerd/runc/{namespace}", ignore_errors=True)
        for path in self.made:
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


def _is_missing(path: Path) -> bool:
    """Whether it is not there, as far as this user may know."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
