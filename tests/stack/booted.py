# SPDX-License-Identifier: Apache-2.0
"""A distribution that systemd has booted: its own processes, and a cgroup namespace of v2.

systemd makes the cgroups of containers here, and sets their device filters anew whenever it is
reloaded. gpushared runs beside it: this machine's files, the place's processes and cgroups.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .distribution import NODES, Cgroups, Distribution, DistributionRoot
from .program import Missing, find

#: "$1" is the cgroup to be the root of the namespace.
ENTER: Final = """
set -eu
mkdir "$1"
echo $$ >"$1/cgroup.procs"
shift
exec "$@"
"""

# What is in no namespace is this machine's, and stays as it is. A tmpfs on /tmp would hide what is
# passed to the place from there.
INIT: Final = (
    NODES
    + """
mkdir /run/lock
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
for unit in systemd-sysctl.service systemd-modules-load.service docker.socket \
	systemd-tmpfiles-setup-dev-early.service systemd-tmpfiles-setup-dev.service \
	proc-sys-fs-binfmt_misc.automount sys-kernel-debug.mount sys-kernel-tracing.mount tmp.mount; do
	ln -sf /dev/null "/etc/systemd/system/$unit"
done
exec env -i container=gpushare PATH="$PATH" /lib/systemd/systemd --unit=basic.target
"""
)


class Booted(DistributionRoot):
    """Debian 13 with systemd as its first process."""

    def __init__(
        self,
        distribution: Distribution,
        folder: Path,
        cgroups: Cgroups = "v2",
        host_paths: Sequence[Path] = (),
    ) -> None:
        if cgroups != "v2":
            raise ValueError("systemd 256 and newer boots on cgroup v2 alone")
        super().__init__(distribution, folder, cgroups, host_paths)
        listed = ["pgrep", "--parent", str(self.first.process.pid)]
        self.pid = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.strip()
        active = self.argv("systemctl", "is-active", "basic.target")
        self.first.wait_until(lambda: _succeeds(active))

    @staticmethod
    def _starting(unshared: list[str], folder: Path) -> list[str]:
        enter = [find("sh"), "-c", ENTER, "sh", str(_v2() / folder.name)]
        apart = [find("unshare"), "--mount", "--pid", "--fork", "--kill-child", "--cgroup"]
        return [*enter, *apart, *unshared, "/bin/sh", "-c", INIT]

    @property
    def namespace(self) -> Path:
        return Path(f"/proc/{self.pid}/ns/mnt")

    @property
    def mount_namespace(self) -> Path:
        return Path("/proc/1/ns/mnt")

    def argv(self, program: str, *words: str) -> list[str]:
        return [
            find("nsenter"),
            "--target",
            self.pid,
            "--pid",
            "--cgroup",
            *super().argv(program, *words)[1:],
        ]

    def beside(self) -> list[str]:
        """Return what runs a program of this machine with the place's processes and cgroups."""
        own = 'mount -t proc proc /proc && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
        return [
            find("nsenter"),
            "--target",
            self.pid,
            "--pid",
            "--cgroup",
            "--",
            find("unshare"),
            "--mount",
            find("sh"),
            "-c",
            own,
            "sh",
        ]

    def close(self) -> None:
        """End it with its first process, which the kernel lets go of after all others."""
        os.kill(int(self.pid), signal.SIGKILL)
        self.first.process.wait()


def _succeeds(argv: list[str]) -> bool:
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


def _v2() -> Path:
    """Return where v2's hierarchy is mounted from its root; Missing where it is not."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup2" and before.split()[3] == "/":
            return Path(before.split()[4])
    raise Missing("this machine has no cgroup v2 mounted")
