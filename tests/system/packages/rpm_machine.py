# SPDX-License-Identifier: Apache-2.0
"""A machine for the rpm: busybox, runc, rpm and a C library, and nothing else of a distribution."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from packages import rpm
from packages.debian_root import NAME
from packages.workspace import Workspace

from tests.stack.distribution import Distribution
from tests.stack.program import find

from .machine import FOLDERS, BareMachine, OwnProcesses, next_source

#: Those of every distribution (its package `filesystem`).
_FOLDERS = (
    "bin",
    "etc",
    "tmp",
    "usr/bin",
    "usr/lib",
    "usr/local",
    "usr/sbin",
    "var/lib/rpm",
    "var/tmp",
    "usr/share/doc",
    "usr/share/licenses",
    "usr/share/man/man1",
    "usr/share/man/man8",
)
#: What glibc was split into; programs that are built for 2.17, such as the probe, name them.
_GLIBC = ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")


class RpmMachine(BareMachine):
    """A machine with an empty database of rpm.

    Its rpm is this machine's, in a folder of its own with its libraries and its configuration.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "machine"
        self.is_booted = False
        self.installer = self.folder / "rpm"
        self.installer.mkdir(parents=True)
        for path in _with_libraries(find("rpm")):
            shutil.copy(path, self.installer)
        shutil.copytree("/usr/lib/rpm", self.installer / "config", symlinks=True)
        small = folder / "root"
        _make_root(small)
        self.root = OwnProcesses(Distribution("small", small, FOLDERS), self.folder)

    def rpm(self, *words: str, check: bool = True) -> str:
        """Run rpm; --nodeps, because no package has /bin/sh here."""
        (loader,) = self.installer.glob("ld-linux-*")
        return self.run(
            "env",
            f"RPM_CONFIGDIR={self.installer}/config",
            str(loader),
            "--library-path",
            str(self.installer),
            str(self.installer / "rpm"),
            "--dbpath=/var/lib/rpm",
            "--nodeps",
            *words,
            check=check,
        ).stdout

    def files(self) -> set[str]:
        """Return every path that is not rpm's or the kernel's own."""
        script = "find / -xdev ! -path '/var/lib/rpm/*' ! -path '/tmp/*' ! -path '/var/tmp/*'"
        return set(self.run("sh", "-c", script).stdout.splitlines())


def next_rpm(workspace: Workspace, folder: Path) -> Path:
    """Return the rpm of a version that is newer in every file that has a version."""
    newer, wheel = next_source(workspace, folder)
    (newer.build / NAME).symlink_to(workspace.build / NAME)
    return rpm.make_from(newer, wheel).path


def _make_root(root: Path) -> None:
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    busybox = find("busybox")
    runc, *libraries = _with_libraries(find("runc"))
    libc = next(path for path in libraries if path.name == "libc.so.6")
    for path in (*libraries, *(libc.with_name(name) for name in _GLIBC)):
        _copy(path, root / path.relative_to("/"))
    _copy(Path(busybox), root / "bin/busybox")
    _copy(runc, root / "usr/sbin/runc")
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True)
    for applet in applets.stdout.split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    (root / "usr/bin/env").symlink_to("/bin/busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    subprocess.run(["ldconfig", "-r", root], check=True)


def _with_libraries(program: str) -> list[Path]:
    """Return a program, and what the loader loads for it."""
    linked = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return [Path(program), *(Path(path) for path in re.findall(r"/\S+", linked))]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
