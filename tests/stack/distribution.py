# SPDX-License-Identifier: Apache-2.0
"""A distribution's programs, run in a mount namespace of their own: this machine's, or Debian 13's.

A `Place` is the distribution's root under an overlay (what engines write there is gone with it),
with a /run of its own and the stack's folder at the path that it has outside. So the launcher, the
libraries, the control socket and whatever a test keeps in `stack.root` have one name on both sides,
and gpushared stays outside, as it does on a host with a hardened unit: `mount_namespace` in its
configuration names the place.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from .program import PLACES, TOOLS, Missing, ServiceProcess, find

BUILD: Final = Path(__file__).resolve().parents[2] / "build"
#: machine: as it has them. v1, v2: of its hierarchies only those, as a machine has that knows no
#: others; crun refuses the two together, and runc then looks at v1's alone.
Cgroups = Literal["machine", "v1", "v2"]

#: "$1" the root, "$2" the stack's folder, "$3" the cgroups, "$4" v1's hierarchies, "$5" what of
#: this machine is visible in it, then what is to run first in it.
SCRIPT: Final = """
set -eu
lower=$1 folder=$2 cgroups=$3 v1=$4 host_paths=$5
shift 5
own=$folder/place
mkdir "$own"
mount -t tmpfs -o mode=755 tmpfs "$own"
mkdir "$own/upper" "$own/work" "$own/root" "$own/cgroup"
mount -t overlay -o "lowerdir=$lower,upperdir=$own/upper,workdir=$own/work" overlay "$own/root"
cd "$own/root"
mkdir -p ./"$folder" proc sys dev run
mount --bind "$folder" ./"$folder"
mount -t proc -o nosuid,nodev,noexec proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs run
for each in $host_paths; do
	if [ -d "$each" ]; then
		mkdir -p ./"$each"
	else
		mkdir -p ./"${each%/*}"
		: >./"$each"
	fi
	mount --bind "$each" ./"$each"
	mount -o remount,bind,ro ./"$each"
done
rm -rf etc/docker etc/gpushare var/lib/docker var/lib/containerd var/lib/containers
case $cgroups in
v1)
	mount -t tmpfs -o mode=755 tmpfs "$own/cgroup"
	for hierarchy in $v1; do
		mkdir "$own/cgroup/${hierarchy##*/}"
		mount --bind "$hierarchy" "$own/cgroup/${hierarchy##*/}"
	done
	mount --rbind "$own/cgroup" sys/fs/cgroup
	;;
v2) mount -t cgroup2 cgroup2 sys/fs/cgroup ;;
esac
pivot_root . .
umount -l .
# The folder is not to be in the environment of what runs first: see remains.py.
unset PWD OLDPWD
echo ready
exec "$@"
"""

# And as systemd leaves mounts: podman has the runtime see a copy of them, which ours must reach.
NODES: Final = """
set -eu
mount --make-rshared /
mkdir /run/dev
mount -t tmpfs -o mode=755 tmpfs /run/dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /run/dev
mkdir /run/dev/pts /run/dev/shm /run/dev/mqueue
mount -t devpts -o newinstance,ptmxmode=666 devpts /run/dev/pts
ln -s pts/ptmx /run/dev/ptmx
mknod -m 666 /run/dev/nvidia0 c 195 0
mknod -m 666 /run/dev/nvidiactl c 195 255
mount --rbind /run/dev /dev
"""


@dataclass(frozen=True)
class Distribution:
    """Where a distribution's files are, and in which folders its programs."""

    name: str
    root: Path
    path: tuple[str, ...]

    def find(self, program: str) -> str:
        """Return the absolute path of `program`, in the distribution's root."""
        for folder in self.path:
            found = self.root / folder.lstrip("/") / program
            # Not followed: an absolute link leads elsewhere from here.
            if found.is_symlink() or os.access(found, os.X_OK):
                return f"{folder}/{program}"
        raise Missing(f"{self.name} has no {program}: run ./dev setup")


#: This machine's own packages, before what else is on its PATH.
HOST: Final = Distribution("host", Path("/"), (*PLACES, *(f"{TOOLS}{place}" for place in PLACES)))
DEBIAN13: Final = Distribution("debian13", BUILD / "debian13", ("/usr/sbin", "/usr/bin"))
#: containerd 2.x and runc, and no other engines.
DEBIAN14: Final = Distribution("debian14", BUILD / "debian14", ("/usr/sbin", "/usr/bin"))


class DistributionRoot:
    """A mount namespace with `distribution` as its root and `folder` at its own path.

    Of this machine it has the files and folders that are named by `host_paths` besides, to read.
    """

    def __init__(
        self,
        distribution: Distribution,
        folder: Path,
        cgroups: Cgroups = "machine",
        host_paths: Sequence[Path] = (),
    ) -> None:
        if not distribution.root.exists():
            raise Missing(f"{distribution.root} is not there: run ./dev setup")
        self.distribution = distribution
        words = [str(distribution.root.resolve()), str(folder), cgroups]
        words.append(" ".join(_v1()) if cgroups == "v1" else "")
        words.append(" ".join(map(str, host_paths)))
        log = folder / "place.log"
        unshared = [find("sh"), "-c", SCRIPT, "sh", *words]
        self.first = ServiceProcess(self._starting(unshared, folder), log)
        self.first.wait_until(lambda: "ready" in log.read_text())

    @staticmethod
    def _starting(unshared: list[str], folder: Path) -> list[str]:  # noqa: ARG004 - `Booted` does
        """Return the command line that runs `unshared` apart from this machine."""
        return [find("unshare"), "--mount", *unshared, "sleep", "infinity"]

    @property
    def namespace(self) -> Path:
        """The name of the mount namespace, outside of it."""
        return Path(f"/proc/{self.first.process.pid}/ns/mnt")

    @property
    def mount_namespace(self) -> Path:
        """The name of the mount namespace, where gpushared runs."""
        return self.namespace

    def argv(self, program: str, *words: str) -> list[str]:
        """Return the command line that runs a program of the distribution, in its root."""
        inside = program if program.startswith("/") else self.distribution.find(program)
        path = f"PATH={':'.join(self.distribution.path)}"
        # env is in every root; nsenter's own PATH must stay this machine's.
        return [
            find("nsenter"),
            f"--mount={self.namespace}",
            "--",
            "/usr/bin/env",
            path,
            inside,
            *words,
        ]

    def make_nodes(self) -> None:
        """Give it a /dev with the nodes of a card, as every machine with one has.

        In a user namespace no node can be made, and runc mounts the host's.
        """
        subprocess.run(self.argv("sh", "-c", NODES), check=True)

    def wrap(self, program: str, folder: Path) -> None:
        """Write `folder/program`, which runs the distribution's from outside."""
        words = " ".join(f"'{word}'" for word in self.argv(program))
        script = folder / program
        script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        script.chmod(0o755)

    def close(self) -> None:
        """End every process in it; its mounts go with the last."""
        first = self.first.process
        here = self.namespace.readlink()
        for pid in _processes_in(here):
            if pid != first.pid:
                with suppress(ProcessLookupError):  # ended meanwhile
                    os.kill(pid, signal.SIGKILL)
        first.kill()
        first.wait()


def _v1() -> Sequence[str]:
    """Return where v1's hierarchies are mounted; Missing on a machine that has v2 alone."""
    found: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup":
            device, top, point = before.split()[2:5]
            if top == "/":
                # A hierarchy may be mounted twice; the first is the machine's own.
                found.setdefault(device, point)
    if not found:
        raise Missing(
            "this machine has no cgroup v1: boot it with systemd.unified_cgroup_hierarchy=0"
        )
    return list(found.values())


def _processes_in(namespace: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                inside = (entry / "ns/mnt").readlink() == namespace
            except OSError:
                continue  # ended meanwhile, or the kernel's own
            if inside:
                found.append(int(entry.name))
    return found
