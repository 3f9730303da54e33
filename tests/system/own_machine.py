# SPDX-License-Identifier: Apache-2.0
"""This machine in namespaces of its own, to be set up and used as its administrator would.

What is written to WRITTEN lands in overlays, /run is empty, and every process that was started
ends with the first of them: nothing of the machine itself is touched.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests import leftovers
from tests.stack.program import TOOLS, ServiceProcess, find

from .waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ("/etc", "/opt", "/usr/local", "/var/lib")
# Its first process reaps what others leave: SIGCHLD that is ignored stays so (execve(2)).
SCRIPT = """
set -eu
mount -t tmpfs tmpfs {overlays}
for folder in {written}; do
    upper={overlays}/upper$folder work={overlays}/work$folder
    mkdir -p $upper $work
    mount -t overlay overlay -o lowerdir=$folder,upperdir=$upper,workdir=$work $folder
done
mount -t tmpfs tmpfs /run
mkdir -p /var/lib/docker
mount -t tmpfs tmpfs /var/lib/docker
rm -rf /etc/docker /etc/gpushare
trap '' CHLD
echo ready
exec sleep infinity
"""


class OwnMachine:
    """Runs command lines in it; `folder` is for logs, its name for cgroups."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cgroup = f"gpushare-{folder.name}"
        overlays = folder / "overlays"
        overlays.mkdir()
        script = SCRIPT.format(overlays=overlays, written=" ".join(WRITTEN))
        unshare = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
        log = folder / "machine.log"
        self._programs: list[ServiceProcess] = []
        self._first = ServiceProcess([*unshare, "sh", "-c", script], log)
        self._first.wait_until(lambda: "ready" in log.read_text())
        listed = ["pgrep", "--parent", str(self._first.process.pid)]
        self._pid = subprocess.run(
            listed, check=True, capture_output=True, text=True
        ).stdout.strip()

    def call(self, line: str, data: bytes | None = None) -> subprocess.CompletedProcess[str]:
        """Run a line as typed into a shell in the checkout; nothing is asserted of it."""
        done = subprocess.run(
            [*self._inside, "sh", "-c", line],
            check=False,
            input=data,
            capture_output=True,
            cwd=ROOT,
            env=self._environment(),
        )
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(line, done.returncode, out, err)

    def run(self, line: str, data: bytes | None = None) -> str:
        """Run a line that must succeed; return what it printed."""
        done = self.call(line, data)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str, argv: Sequence[str], ready: Callable[[], bool]) -> None:
        """Start a program of the machine and return once it is `ready`."""
        log = self.folder / f"{name}.log"
        program = ServiceProcess([*self._inside, *argv], log, self._environment())
        self._programs.append(program)
        program.wait_until(ready)

    def start_gpushared(self, argv: Sequence[str]) -> None:
        """Start gpushared and return once it has its socket."""
        socket = "test -S /run/gpushare/control.sock"
        self.start("gpushared", argv, lambda: self.call(socket).returncode == 0)

    def start_dockerd(self) -> None:
        """Start docker with its own folders and socket, and without a network.

        In a cgroup of this machine's name: those are not in a namespace of their own.
        """
        flags = [
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--bridge=none",
            "--userland-proxy=false",
            "--exec-opt",
            "native.cgroupdriver=cgroupfs",
            "--cgroup-parent",
            f"/{self.cgroup}",
        ]
        self.start(
            "dockerd",
            [find("dockerd"), *flags],
            lambda: self.call("docker version").returncode == 0,
        )

    def close(self) -> None:
        """End every process of it; its mounts go with the last."""
        # unshare holds back a polite signal until its child has ended.
        self._first.process.kill()
        for program in (self._first, *self._programs):
            program.process.wait()
        wait_until(self._left_its_cgroups)

    def _left_its_cgroups(self) -> bool:
        """Remove them; the kernel lets go of the last processes in its own time."""
        for group in leftovers.cgroups_named(self.cgroup):
            with suppress(OSError):
                group.rmdir()
        return not leftovers.cgroups_named(self.cgroup)

    @property
    def _inside(self) -> list[str]:
        return ["nsenter", "--target", self._pid, "--mount", "--pid", "--"]

    @staticmethod
    def _environment() -> dict[str, str]:
        """Return a user's environment: the machine's programs, nothing of this checkout's."""
        folders = os.environ["PATH"].split(":")
        path = [folder for folder in folders if not folder.startswith(str(ROOT))]
        unpacked = str(TOOLS / "bin")
        return {
            "HOME": os.environ.get("HOME", "/root"),
            "LANG": "C.UTF-8",
            "PATH": ":".join(["/usr/local/bin", *path, "/usr/sbin", "/sbin", unpacked]),
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
        }
